"""Messages that cross from one account to another: imported streams and services.

Owns: the sinks that carry messages between accounts, and the pending requests to imported services.
May not touch: which imports are permitted (config/check_accounts.py), sockets.
A message crosses at the node its publisher is connected to; from there the interest of the other
account routes it further. Answers are expected on an unguessable subject in the exporter's
account only, so that no other account can answer in its place.
Spec: NATS accounts, exports and imports of streams and services."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import randrange
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from broker.accounts import Account
from broker.config.check_accounts import export_of, import_mapping
from broker.config.options import AccountOptions, Export, Import
from broker.server.routing import latency
from broker.server.routing.internal_subscription import InterestTable, InternalSubscription
from broker.server.routing.latency import OK, Measured
from broker.subjects import PublishingConnection, SinkKind, Subscription
from broker.wire import headers as wire_headers

if TYPE_CHECKING:
    from broker.wire import PubRun

ANSWERS_MAX = 65_536  # expected per import; beyond it the oldest request is dropped
CROSSINGS_MAX = 16  # accounts one message may pass through
REQUEST_INFO = b"Nats-Request-Info"
Message = tuple[bytes, bytes, bytes, bytes]  # subject, reply, headers, payload
Publish = Callable[[Account, bytes, bytes, bytes, bytes], int]  # returns how many took it


class CrossingRouter(InterestTable, Protocol):
    """The router, as imports use it."""

    def publish(
        self, account: Account, subject: bytes, reply: bytes, headers: bytes, payload: bytes, /
    ) -> int: ...


class RequestingClients(Protocol):
    """What an imported service may learn about the client that sent a request."""

    def rtt_ns(self, cid: int) -> int: ...

    def request_info(self, cid: int) -> dict[str, Any]:
        """The fields that `share: true` reveals; empty when the client has disconnected."""


class Crossings:
    """How many accounts the current message has passed through. Deliveries are nested calls."""

    __slots__ = ("about", "depth")

    def __init__(self) -> None:
        self.depth = 0
        self.about: bytes | None = None  # description of the requestor, for the first service

    @contextmanager
    def one_more(self) -> Iterator[bool]:
        self.depth += 1
        try:
            yield self.depth <= CROSSINGS_MAX
        finally:
            self.depth -= 1


class _Crossing:
    """A sink that maps the subject and hands the message to its import."""

    kind = SinkKind.SERVICE

    def __init__(
        self, router: CrossingRouter, crossings: Crossings, target: Account, rule: Import
    ) -> None:
        self._router = router
        self._crossings = crossings
        self.target = target
        self.rule = rule
        self.mapped = import_mapping(rule)  # maps to the other account's subject; None: no match

    def deliver_run(
        self,
        sub: Subscription,
        run: PubRun,
        start: int,
        stop: int,
        publisher: PublishingConnection | None,
    ) -> bool:
        subject = self.mapped(run.message(start)[0])
        if subject is None:
            return False
        taken = False
        publish = self._router.publish
        with self._crossings.one_more() as allowed:
            for row in range(start, stop) if allowed else ():
                message = (subject, *run.message(row)[1:])
                taken = self._cross(message, publisher, publish) or taken
        return taken

    def deliver(
        self, sub: Subscription, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> bool:
        message = (subject, reply, headers, payload)
        return self.carry(message, None, self._router.publish)

    def carry(
        self, message: Message, publisher: PublishingConnection | None, publish: Publish
    ) -> bool:
        """Like deliver, but passes the message for the other account to `publish`."""
        mapped = self.mapped(message[0])
        if mapped is None:
            return False
        with self._crossings.one_more() as allowed:
            return allowed and self._cross((mapped, *message[1:]), publisher, publish)

    def _cross(
        self, message: Message, publisher: PublishingConnection | None, publish: Publish
    ) -> bool:
        return not expired(self.rule) and publish(self.target, *message) > 0


class StreamImport(_Crossing):
    """Subscribed in the exporter's account; republishes to the importer's subscribers."""


def expired(rule: Import) -> bool:
    """Whether the activation token of the import is no longer valid."""
    token = rule.activation
    return token is not None and 0 < token.expires <= time.time()


class ServiceImport(_Crossing):
    """Subscribed in the importer's account; forwards requests to the exporter, answers back."""

    def __init__(
        self, router: CrossingRouter, crossings: Crossings, exporter: Account, rule: Import,
        *, importer: Account, export: Export, clients: RequestingClients,
    ) -> None:  # fmt: skip
        super().__init__(router, crossings, exporter, rule)
        self._clients = clients
        self._importer = importer
        self.export = export
        self._prefix = b"_R_.%b." % secrets.token_hex(8).encode()
        self._inbox: InternalSubscription | None = None
        # Token -> (reply subject, deadline). Deadlines only increase, so the oldest is first.
        self._expected: dict[bytes, tuple[bytes, int]] = {}
        self._measured: dict[bytes, Measured] = {}  # requests whose latency is measured, by token

    def _cross(
        self, message: Message, publisher: PublishingConnection | None, publish: Publish
    ) -> bool:
        subject, reply, headers, payload = message
        if expired(self.rule):
            return False
        crossings = self._crossings
        before = crossings.about
        crossings.about = before or msgspec.json.encode(self._about(publisher))
        headers = wire_headers.without(headers, REQUEST_INFO + b":")  # a client may not forge it
        headers = wire_headers.add(headers, [(REQUEST_INFO, crossings.about)])
        measured = self._measure(headers, publisher) if reply and self.export.latency else None
        token = self._expect(reply) if reply else b""
        if measured is not None:
            self._measured[token] = measured
        answer_to = self._prefix + token if reply else b""
        if self.target.mappings is not None:
            subject = self.target.mappings.subject(subject)
        try:
            taken = publish(self.target, subject, answer_to, headers, payload) > 0
        finally:
            crossings.about = before
        if not taken:
            self._expected.pop(token, None)
            self._tell(self._measured.pop(token, None), status=latency.UNAVAILABLE)
        return taken

    def _measure(self, headers: bytes, publisher: PublishingConnection | None) -> Measured | None:
        assert self.export.latency is not None, "asked for"
        found = latency.asked(self.export.latency, headers, randrange)
        if found is None:
            return None
        return Measured(self._about(publisher), time.time(), time.monotonic_ns(), found)

    def _tell(self, request: Measured | None, *, answered_ns: int = 0, status: int = OK) -> None:
        """Publish the latency report of a request, if its latency is measured."""
        where = self.export.latency
        if request is None or where is None:
            return
        responder = None
        if status == OK:
            publisher = self._inbox.publisher if self._inbox is not None else None
            responder = self._clients.request_info(publisher.cid) if publisher is not None else {}
            responder = responder or {"acc": self.target.name}
        document = latency.report(
            request,
            now=time.time(),
            responder=responder,
            answered_ns=answered_ns,
            sent_ns=time.monotonic_ns(),
            status=status,
        )
        body = msgspec.json.encode(document)
        self._router.publish(self.target, where.subject, b"", b"", body)

    def _expect(self, reply: bytes) -> bytes:
        now = time.monotonic_ns()
        expected = self._expected
        while expected:
            oldest = next(iter(expected))
            if expected[oldest][1] > now and len(expected) < ANSWERS_MAX:
                break
            del expected[oldest]
            self._tell(self._measured.pop(oldest, None), status=latency.TIMEOUT)
        if self._inbox is None:
            subject = self._prefix + b"*"
            self._inbox = InternalSubscription(self._router, self.target, subject, self._answered)
        token = secrets.token_hex(8).encode()
        expected[token] = (reply, now + self.export.threshold_ns)
        return token

    def _answered(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
        token = subject[len(self._prefix) :]
        found = self._expected.pop(token, None)
        now = time.monotonic_ns()
        if found is None or found[1] <= now:
            return
        if self.export.many_answers:
            self._expected[token] = (found[0], now + self.export.threshold_ns)
        with self._crossings.one_more() as allowed:
            if allowed:
                self._router.publish(self._importer, found[0], reply, headers, payload)
        if self._measured:
            self._tell(self._measured.pop(token, None), answered_ns=now)

    def close(self) -> None:
        """Stop waiting for answers."""
        if self._inbox is not None:
            self._inbox.close()

    def _about(self, publisher: PublishingConnection | None) -> dict[str, Any]:
        rtt_ns = 0 if publisher is None else self._clients.rtt_ns(publisher.cid)
        if self.rule.share and publisher is not None:
            about = self._clients.request_info(publisher.cid)
            if about:
                return about
        return {"acc": self._importer.name, "rtt": rtt_ns}


class Imports:
    """The sinks of all imports between the accounts of a server."""

    def __init__(
        self,
        account: Callable[[str], Account],
        router: CrossingRouter,
        clients: RequestingClients,
    ) -> None:
        self._account = account
        self._router = router
        self._clients = clients
        self._crossings = Crossings()
        self._joined: dict[tuple[str, Import, Export | None], Subscription] = {}

    def join(self, configured: Sequence[AccountOptions]) -> None:
        """Subscribe exactly the sinks of these imports. Unchanged ones keep their pending
        requests."""
        by_name = {one.name: one for one in configured}
        wanted: dict[tuple[str, Import, Export | None], None] = {}
        for options in by_name.values():
            for rule in options.imports:
                export = None
                if rule.service:
                    export = export_of(by_name[rule.account], options.name, rule)
                    assert export is not None, "the configuration was checked"
                wanted[options.name, rule, export] = None
        for key in [key for key in self._joined if key not in wanted]:
            self._part(self._joined.pop(key))
        for key in wanted:
            if key not in self._joined:
                self._joined[key] = self._sink(*key)

    def _sink(self, importing: str, rule: Import, export: Export | None) -> Subscription:
        importer, exporter = self._account(importing), self._account(rule.account)
        if export is None:
            stream = StreamImport(self._router, self._crossings, importer, rule)
            sub = Subscription(stream, exporter, rule.subject)
            exporter.subs.insert(sub)
            return sub
        service = ServiceImport(
            self._router, self._crossings, exporter, rule,
            importer=importer, export=export, clients=self._clients,
        )  # fmt: skip
        sub = Subscription(service, importer, rule.local)
        importer.subs.insert(sub)
        return sub

    def _part(self, sub: Subscription) -> None:
        self._account(sub.account.name).subs.remove(sub)
        if isinstance(sub.sink, ServiceImport):
            sub.sink.close()
