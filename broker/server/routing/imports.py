"""Messages that cross from one account to another: imported streams and services.

Owns: the sinks that carry them over, and the answers still expected by imported services.
May not touch: who may import what (config/check_accounts.py has decided), sockets.
A message crosses at the node its publisher is connected to; from there the interest of the other
account takes it further. An answer is known by an unguessable subject in the exporter's account
only, so that no other account can answer in its place.
Spec: core contract 3.5."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from broker.accounts import Account
from broker.config.check_accounts import export_of, import_mapping
from broker.config.options import Export, Import
from broker.server.routing.internal_subscription import InternalSubscription
from broker.subjects import PublishingConnection, SinkKind, Subscription
from broker.wire import headers as wire_headers

if TYPE_CHECKING:
    from broker.server.client.connection import Connection
    from broker.server.server import Server
    from broker.wire import PubRun

ANSWERS_MAX = 65_536  # expected per import; beyond it the oldest request is given up
CROSSINGS_MAX = 16  # accounts one message may pass through
REQUEST_INFO = b"Nats-Request-Info"
Message = tuple[bytes, bytes, bytes, bytes]  # subject, reply, headers, payload
Publish = Callable[[Account, bytes, bytes, bytes, bytes], int]  # how many took it


class Crossings:
    """How many accounts the message at hand has passed. Deliveries are nested calls."""

    __slots__ = ("about", "depth")

    def __init__(self) -> None:
        self.depth = 0
        self.about: bytes | None = None  # who asked, as the first service was told

    @contextmanager
    def one_more(self) -> Iterator[bool]:
        self.depth += 1
        try:
            yield self.depth <= CROSSINGS_MAX
        finally:
            self.depth -= 1


class _Crossing:
    """What both kinds of import share: a sink that maps a subject and publishes elsewhere."""

    kind = SinkKind.SERVICE

    def __init__(self, server: Server, crossings: Crossings, target: Account, rule: Import) -> None:
        self._server = server
        self._crossings = crossings
        self.target = target
        self.rule = rule
        self.mapped = import_mapping(rule)  # the subject there; None when it cannot be one

    def deliver_run(
        self,
        sub: Subscription,
        run: PubRun,
        start: int,
        stop: int,
        origin: PublishingConnection | None,
    ) -> bool:
        subject = self.mapped(run.message(start)[0])
        if subject is None:
            return False
        taken = False
        publish = self._server.router.publish
        with self._crossings.one_more() as allowed:
            for row in range(start, stop) if allowed else ():
                message = (subject, *run.message(row)[1:])
                taken = self._cross(message, origin, publish) or taken
        return taken

    def deliver(
        self, sub: Subscription, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> bool:
        message = (subject, reply, headers, payload)
        return self.carry(message, None, self._server.router.publish)

    def carry(
        self, message: Message, origin: PublishingConnection | None, publish: Publish
    ) -> bool:
        """As deliver. `publish` decides what becomes of it in the other account."""
        mapped = self.mapped(message[0])
        if mapped is None:
            return False
        with self._crossings.one_more() as allowed:
            return allowed and self._cross((mapped, *message[1:]), origin, publish)

    def _cross(
        self, message: Message, origin: PublishingConnection | None, publish: Publish
    ) -> bool:
        raise NotImplementedError


class StreamImport(_Crossing):
    """Sits in the exporter's table; the importer's subscribers see what is published there."""

    def _cross(
        self, message: Message, origin: PublishingConnection | None, publish: Publish
    ) -> bool:
        return publish(self.target, *message) > 0


class ServiceImport(_Crossing):
    """Sits in the importer's table; requests go to the exporter, answers come back from there."""

    def __init__(
        self, server: Server, crossings: Crossings, exporter: Account, rule: Import,
        *, importer: Account, export: Export,
    ) -> None:  # fmt: skip
        super().__init__(server, crossings, exporter, rule)
        self._importer = importer
        self.export = export
        self._prefix = b"_R_.%b." % secrets.token_hex(8).encode()
        self._inbox: InternalSubscription | None = None
        # By token: where the answer goes, and until when. Rising deadlines, so oldest first.
        self._expected: dict[bytes, tuple[bytes, int]] = {}

    def _cross(
        self, message: Message, origin: PublishingConnection | None, publish: Publish
    ) -> bool:
        subject, reply, headers, payload = message
        crossings = self._crossings
        before = crossings.about
        crossings.about = before or msgspec.json.encode(self._about(origin))
        headers = wire_headers.without(headers, REQUEST_INFO + b":")  # a client's own is a lie
        headers = wire_headers.add(headers, [(REQUEST_INFO, crossings.about)])
        token = self._expect(reply) if reply else b""
        answer_to = self._prefix + token if reply else b""
        try:
            taken = publish(self.target, subject, answer_to, headers, payload) > 0
        finally:
            crossings.about = before
        if not taken:
            self._expected.pop(token, None)
        return taken

    def _expect(self, reply: bytes) -> bytes:
        now = time.monotonic_ns()
        expected = self._expected
        while expected:
            oldest = next(iter(expected))
            if expected[oldest][1] > now and len(expected) < ANSWERS_MAX:
                break
            del expected[oldest]
        if self._inbox is None:
            subject = self._prefix + b"*"
            self._inbox = InternalSubscription(
                self._server.router, self.target, subject, self._answered
            )
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
                self._server.router.publish(self._importer, found[0], reply, headers, payload)

    def _about(self, origin: PublishingConnection | None) -> dict[str, Any]:
        connection = self._server.connections.get(origin.cid) if origin is not None else None
        rtt_ns = round(connection.live.rtt_s * 1e9) if connection is not None else 0
        about: dict[str, Any] = {"acc": self._importer.name, "rtt": rtt_ns}
        if self.rule.share and connection is not None:
            about = _shared(self._server, connection) | about
        return about


def _shared(server: Server, connection: Connection) -> dict[str, Any]:
    options = connection.connect
    found = {
        "host": connection.host,
        "id": connection.cid,
        "user": connection.identity.user,
        "name": options.name,
        "lang": options.lang,
        "ver": options.version,
        "server": server.name,
        "cluster": server.options.cluster.name if server.options.cluster is not None else "",
        "kind": "Client",
        "client_type": "nats",
    }
    return {key: value for key, value in found.items() if value != ""}


def join_accounts(server: Server) -> None:
    """Put the sinks of all imports in their places; once, when the server is built."""
    crossings = Crossings()
    by_name = {one.name: one for one in server.options.accounts}
    for options in by_name.values():
        importer = server.account(options.name)
        for rule in options.imports:
            exporter = server.account(rule.account)
            if not rule.service:
                stream = StreamImport(server, crossings, importer, rule)
                exporter.subs.insert(Subscription(stream, exporter, rule.subject))
                continue
            export = export_of(by_name[rule.account], options.name, rule)
            assert export is not None, "the configuration was checked"
            service = ServiceImport(
                server, crossings, exporter, rule, importer=importer, export=export
            )
            importer.subs.insert(Subscription(service, importer, rule.local))
