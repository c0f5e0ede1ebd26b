"""Delivery of messages that ask for a trace: one by one, with an event for every step.

Owns: the fan-out of a traced message, and the report that is published to its trace destination.
May not touch: messages that ask for no trace; the caller has found those that do (`rows`).
A trace spans servers; each reports its own part. A message that is routed to another node in a
different account than the publisher's is not traced there: the events belong to the publisher.
Spec: NATS ADR-41, message tracing; details as in nats-server 2.15."""

from __future__ import annotations

from collections.abc import Callable
from random import randrange
from typing import Any, Protocol, cast, runtime_checkable

import msgspec

from broker.accounts import Account
from broker.accounts.permissions import PermissionSet
from broker.server.routing.imports import Message, ServiceImport, StreamImport
from broker.server.routing.mapped_runs import mapped_run
from broker.server.routing.reserved_subjects import SUBJECTS, refusals
from broker.server.routing.router import Publisher
from broker.server.services import Document
from broker.server.tracing import message_trace as events
from broker.server.tracing.message_trace import Trace, TraceRequest
from broker.server.tracing.storage_trace import PublishOne, Storing, StreamSink
from broker.subjects import Sink, SinkKind, Subscription, has_wildcard, valid_subject
from broker.wire import PubRun

_GZIP = (b"Content-Encoding", b"gzip")


@runtime_checkable
class TracedSink(Protocol):
    """A client that is named in the events of its deliveries."""

    cid: int
    name: str
    permissions: PermissionSet | None

    @property
    def closed(self) -> bool: ...


class TracedPublisher(Publisher, Protocol):
    name: str

    def may_publish_to(self, subject: bytes) -> bool: ...
    def refuse_publish(self, subject: bytes) -> None: ...
    def error(self, text: str) -> None: ...


class TracingRouter(Protocol):
    """The router, as tracing uses it."""

    @property
    def publish(self) -> PublishOne: ...

    def tell_no_responders(self, publisher: Publisher, subject: bytes, reply: bytes) -> None: ...


def rows(run: PubRun, account: Account) -> list[int]:
    """Which messages may ask for a trace: one search in all header blocks of the run."""
    found = run.rows_naming(events.DEST_NAME)
    if account.options.trace_dest:
        found = sorted({*found, *run.rows_naming(events.TRACEPARENT_NAME)})
    return found


def pieces(run: PubRun, traced: list[int]) -> list[tuple[PubRun, bool]]:
    """The run, split so that each traced message is a run of its own (marked True)."""
    found: list[tuple[PubRun, bool]] = []
    begin = 0
    for row in [*traced, len(run)]:
        if row > begin:
            found.append((PubRun.of([run.message(i) for i in range(begin, row)]), False))
        if row < len(run):
            found.append((PubRun.of([run.message(row)]), True))
        begin = row + 1
    return found


class Tracing:
    """One per server."""

    def __init__(
        self,
        router: TracingRouter,
        account: Callable[[str], Account],
        *,
        system_account: str,
        server: Callable[[int], Document],
    ) -> None:
        """`server` returns the `server` part of a report, given the report's number."""
        self._router = router
        self._system_account = system_account
        self._server = server
        self._sent = 0
        self._traced_classes: dict[type, bool] = {}
        self._storing = Storing(account, router.publish)
        self.peer_name: Callable[[int], str] = lambda _peer: ""  # replaced by the cluster
        self._system_services: tuple[bytes, ...] = (b"$SYS.REQ.",)
        self._own_services: tuple[bytes, ...] = ()

    def show_as_system(self, prefix: bytes, *, without: tuple[bytes, ...] = ()) -> None:
        """Services under `prefix` appear as imports from the system account, except `without`."""
        self._system_services += (prefix,)
        self._own_services += without

    # -- the start of a trace -----------------------------------------------------------------

    def publish(self, publisher: TracedPublisher, run: PubRun) -> PubRun | None:
        """One message of a client. Returns what must be published untraced, if anything."""
        subject, reply, headers, payload = run.message(0)
        asked = events.requested(headers, publisher.account, first_server=True)
        if asked.dest and not valid_subject(asked.dest, wildcards=False):
            asked = TraceRequest(only=asked.only)
        if not asked.dest:
            if asked.disable and not asked.only:
                run = PubRun.of([(subject, reply, events.disabled(headers), payload)])
            return None if asked.only else run
        if not self._may_report(publisher, asked.dest):
            publisher.refuse_publish(asked.dest)
            return None
        trace = self._begin(publisher.account, asked, run)
        ingress = trace.add("in", kind=events.CLIENT_KIND, cid=publisher.cid, name=publisher.name,
                            acc=publisher.account.name, subj=events.text(subject))  # fmt: skip
        if publisher.account.mappings is not None:
            mapped = mapped_run(publisher.account.mappings, run)
            if mapped is not run:
                run, subject = mapped, mapped.message(0)[0]
                trace.add("sm", to=events.text(subject))
        refused = _refusal(publisher, run)
        if refused:
            ingress["error"] = refused
        else:
            taken = self._fan_out(trace, publisher.account, run, publisher)
            if not taken and reply and publisher.no_responders:
                self._router.tell_no_responders(publisher, subject, reply)
        trace.done()
        return None

    def routed(
        self, peer: int, account: Account, run: PubRun, *, plain: bool, queues: list[bytes]
    ) -> bool:
        """One message from another node. False: it asks for no trace and is not yet delivered."""
        subject, _, headers, _ = run.message(0)
        asked = events.requested(headers, account, first_server=False)
        if not asked.dest:
            return asked.only
        trace = self._begin(account, asked, run)
        trace.hop = asked.lines.get(events.HOP.decode(), [""])[0]
        trace.add("in", kind=events.ROUTE_KIND, cid=peer, name=self.peer_name(peer),
                  acc=account.name, subj=events.text(subject))  # fmt: skip
        found = account.subs.match(subject)
        for sub in found.plain if plain else ():
            if sub.sink.kind is SinkKind.CLIENT:
                self._to_client(trace, sub, run, None)
        for pool in found.local_queues():
            if pool[0].queue in queues:
                self._to_one_of(pool, lambda sub: self._to_client(trace, sub, run, None))
        trace.done()
        return True

    def _begin(self, account: Account, asked: TraceRequest, run: PubRun) -> Trace:
        request = events.request_of(asked, run.total_bytes)
        return Trace(account, asked.dest, asked.only, request, self._send)

    def _may_report(self, publisher: TracedPublisher, dest: bytes) -> bool:
        if dest.startswith(SUBJECTS):
            return False
        return publisher.may_publish_to(dest)

    # -- recipients -------------------------------------------------------------------------

    def _fan_out(
        self, trace: Trace, account: Account, run: PubRun, publisher: TracedPublisher | None
    ) -> bool:
        """Deliver to all subscribers in the account, other nodes last. True if it was delivered."""
        found = account.subs.match(run.message(0)[0])
        routes: list[Subscription] = []

        def take(sub: Subscription) -> bool:
            if sub.sink.kind is SinkKind.ROUTE:
                routes.append(sub)
                return True
            return self._take(trace, sub, run, publisher)

        taken = False
        for sub in found.plain:
            taken = take(sub) or taken
        for pool in found.queues:
            taken = self._to_one_of(pool, take) or taken
        return self._to_nodes(trace, account, routes, run) or taken

    def _to_one_of(self, pool: list[Subscription], take: Callable[[Subscription], bool]) -> bool:
        turn = randrange(len(pool))
        return any(take(sub) for sub in (*pool[turn:], *pool[:turn]))

    def _take(
        self, trace: Trace, sub: Subscription, run: PubRun, publisher: TracedPublisher | None
    ) -> bool:
        sink = sub.sink
        if sink.kind is SinkKind.CLIENT:
            return self._to_client(trace, sub, run, publisher)
        if sink.kind is SinkKind.STREAM:
            return self._storing.store(trace, cast(StreamSink, sink), sub, run, publisher)
        if isinstance(sink, StreamImport):
            return self._to_importers(trace, sink, sub, run, publisher)
        if isinstance(sink, ServiceImport):
            return self._to_exporter(trace, sink, sub, run, publisher)
        return self._to_service(trace, sub, run, publisher)

    def _to_client(
        self, trace: Trace, sub: Subscription, run: PubRun, publisher: TracedPublisher | None,
        *, shown: bytes = b"",
    ) -> bool:  # fmt: skip
        sink = sub.sink
        if not self._is_traced(sink):  # a subscription of the server itself
            return sink.deliver_run(sub, run, 0, 1, publisher)
        named = cast(TracedSink, sink)
        error = _obstacle(named, sub, run.message(0)[0], publisher)
        if not error and not trace.only and not sink.deliver_run(sub, run, 0, 1, publisher):
            error = events.CLIENT_CLOSED
        trace.egress(named.cid, named.name, account=sub.account.name,
                     sub=shown or sub.subject, queue=sub.queue, error=error)  # fmt: skip
        return not error

    def _is_traced(self, sink: Sink) -> bool:
        """Whether deliveries to this sink are reported. Cached per class: isinstance with a
        Protocol takes longer than a delivery."""
        known = self._traced_classes.get(type(sink))
        if known is None:
            known = self._traced_classes[type(sink)] = isinstance(sink, TracedSink)
        return known

    def _to_service(
        self, trace: Trace, sub: Subscription, run: PubRun, publisher: TracedPublisher | None
    ) -> bool:
        """Deliver to a service of this server. A trace does not extend into the system account."""
        subject = run.message(0)[0]
        if subject.startswith(self._system_services) and not subject.startswith(self._own_services):
            shown = events.text(subject)
            trace.add("si", acc=self._system_account, **{"from": shown, "to": shown})
            if trace.only:
                return False
        return sub.sink.deliver_run(sub, run, 0, 1, publisher)

    # -- other accounts ---------------------------------------------------------------------

    def _to_importers(
        self, trace: Trace, sink: StreamImport, sub: Subscription, run: PubRun,
        publisher: TracedPublisher | None,
    ) -> bool:  # fmt: skip
        """A stream import has one event for each subscription in the importing account."""

        def publish(account: Account, *message: bytes) -> int:
            found = account.subs.match(message[0])
            across = PubRun.of([cast(Message, message)])
            taken = 0
            for there in found.plain:
                taken += one(there, across)
            for pool in found.queues:
                taken += self._to_one_of(pool, lambda there: one(there, across))
            return taken

        def one(there: Subscription, across: PubRun) -> bool:
            trace.add("se", acc=there.account.name, to=events.text(across.message(0)[0]))
            if not sink.rule.allow_trace:
                return trace.only or there.sink.deliver_run(there, across, 0, 1, publisher)
            if there.sink.kind is SinkKind.ROUTE:
                return self._to_nodes(trace, sink.target, [there], across)
            if there.sink.kind is SinkKind.CLIENT:
                shown = sub.subject if has_wildcard(there.subject) else run.message(0)[0]
                return self._to_client(trace, there, across, publisher, shown=shown)
            return self._take(trace, there, across, publisher)

        return sink.carry(run.message(0), publisher, publish)

    def _to_exporter(
        self, trace: Trace, sink: ServiceImport, sub: Subscription, run: PubRun,
        publisher: TracedPublisher | None,
    ) -> bool:  # fmt: skip
        subject, reply, headers, payload = run.message(0)
        to = sink.mapped(subject)
        if to is None:
            return False
        trace.add("si", acc=sink.target.name,
                  **{"from": events.text(subject), "to": events.text(to)})  # fmt: skip
        # The service may copy the headers to its own messages, which must not be traced.
        run = PubRun.of([(subject, reply, events.disabled(headers), payload)])
        if not sink.export.allow_trace:
            return not trace.only and sink.deliver_run(sub, run, 0, 1, publisher)

        def publish(account: Account, *message: bytes) -> int:
            return self._fan_out(trace, account, PubRun.of([cast(Message, message)]), publisher)

        return sink.carry(run.message(0), publisher, publish)

    # -- other nodes ------------------------------------------------------------------------

    def _to_nodes(
        self, trace: Trace, account: Account, routes: list[Subscription], run: PubRun
    ) -> bool:
        """One copy per peer, with its own hop number."""
        by_peer: dict[Any, list[Subscription]] = {}
        for sub in routes:
            by_peer.setdefault(sub.sink, []).append(sub)
        subject, reply, headers, payload = run.message(0)
        home = account is trace.account
        taken = False
        for sink, subs in by_peer.items():
            name = self.peer_name(sink.peer)
            if not home and trace.only:
                trace.egress(
                    sink.peer,
                    name,
                    kind=events.ROUTE_KIND,
                    error=events.NOT_SENT_THERE,
                )
                continue
            hop = trace.next_hop() if home else ""
            block = events.with_header(headers, events.HOP, hop.encode()) if home else (
                events.disabled(headers)
            )  # fmt: skip
            across = PubRun.of([(subject, reply, block, payload)])
            for sub in subs:
                sink.deliver_run(sub, across, 0, 1, None)
            trace.egress(sink.peer, name, kind=events.ROUTE_KIND, hop=hop,
                         error="" if home else events.NOT_TRACED_THERE)  # fmt: skip
            taken = True
        return taken

    # -- the report -------------------------------------------------------------------------

    def _send(self, trace: Trace) -> None:
        self._sent += 1
        body = msgspec.json.encode(trace.document(self._server(self._sent)))
        headers = b""
        accepted = trace.request["header"].get("Accept-Encoding", [""])[0].lower()
        if "gzip" in accepted and "snappy" not in accepted and "s2" not in accepted:
            import gzip  # few traces ask for it

            body = gzip.compress(body)
            headers = b"NATS/1.0\r\n%b: %b\r\n\r\n" % _GZIP
        self._router.publish(trace.account, trace.dest, b"", headers, body)


def _refusal(publisher: TracedPublisher, run: PubRun) -> str:
    """Why the client may not publish this; the -ERR has already been sent."""
    refused = refusals(run, publisher.rules).get(0)
    if refused is not None:
        publisher.error(refused)
        return refused
    subject = run.message(0)[0]
    if publisher.guarded and not publisher.check_publish(subject, 0, 1):
        return f'Permissions Violation for Publish to "{subject.decode(errors="backslashreplace")}"'
    return ""


def _obstacle(
    sink: TracedSink, sub: Subscription, subject: bytes, publisher: TracedPublisher | None
) -> str:
    if publisher is not None and sub.sink is publisher and not publisher.echo:
        return events.NO_ECHO
    allowed = sink.permissions
    if allowed is not None and allowed.filters(sub.subject) and not allowed.may_receive(subject):
        return events.DENIED
    if sub.closed:
        return events.SUBSCRIPTION_CLOSED
    return events.CLIENT_CLOSED if sink.closed else ""
