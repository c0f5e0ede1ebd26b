"""Traced messages: delivered one by one, and told of on the way.

Owns: the way of a message that asks for a trace, and of the events to where it wants them.
May not touch: messages that ask for none; the caller has found those that do (`rows`).
A trace spans servers: each tells its own part. It ends where a message goes on to another node in
another account than it was published in, because the events belong to the publisher's.
Spec: core contract 1.13; where that is silent, nats-server 2.15."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable
from random import randrange
from typing import TYPE_CHECKING, Any, cast

import msgspec

from broker.accounts import Account
from broker.config.options import VERSION
from broker.server.client.endpoint import Endpoint
from broker.server.process.times import timestamp
from broker.server.routing.imports import Message, ServiceImport, StreamImport
from broker.server.routing.reserved_subjects import SUBJECTS, refusals
from broker.server.tracing import message_trace as told
from broker.server.tracing.message_trace import Trace, Wanted
from broker.server.tracing.storage_trace import Storing, StreamSink
from broker.subjects import SinkKind, Subscription, has_wildcard, valid_subject
from broker.wire import PubRun

if TYPE_CHECKING:
    from broker.server.client.connection import Connection
    from broker.server.server import Server

# Served from the system account, as far as clients are told. Pulls and direct gets are not.
_SYSTEM_SERVICES = (b"$JS.API.", b"$SYS.REQ.")
_NOT_IMPORTED = (b"$JS.API.CONSUMER.MSG.NEXT.", b"$JS.API.DIRECT.GET.")
_GZIP = (b"Content-Encoding", b"gzip")


def rows(run: PubRun, account: Account) -> list[int]:
    """Which messages may ask for a trace: one look at all header blocks of the run."""
    found = run.rows_naming(told.DEST_NAME)
    if account.options.trace_dest:
        found = sorted({*found, *run.rows_naming(told.TRACEPARENT_NAME)})
    return found


def pieces(run: PubRun, traced: list[int]) -> list[tuple[PubRun, bool]]:
    """The run cut so that each traced message stands alone; True marks those."""
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

    def __init__(self, server: Server) -> None:
        self._server = server
        self._sent = 0
        self._storing = Storing(server)
        self.peer_name: Callable[[int], str] = lambda _peer: ""  # a cluster knows better

    # -- where traces begin -----------------------------------------------------------------

    def publish(self, origin: Connection, run: PubRun) -> PubRun | None:
        """One message of a client. Returns what must be published untraced, if anything."""
        subject, reply, headers, payload = run.message(0)
        asked = told.wanted(headers, origin.account, first_server=True)
        if asked.dest and not valid_subject(asked.dest, wildcards=False):
            asked = Wanted(only=asked.only)
        if not asked.dest:
            if asked.disable and not asked.only:
                run = PubRun.of([(subject, reply, told.disabled(headers), payload)])
            return None if asked.only else run
        if not self._may_report(origin, asked.dest):
            origin.refuse_publish(asked.dest)
            return None
        trace = self._begin(origin.account, asked, run)
        ingress = trace.add("in", kind=told.CLIENT_KIND, cid=origin.cid, name=origin.connect.name,
                            acc=origin.account.name, subj=told.text(subject))  # fmt: skip
        refused = _refusal(origin, run)
        if refused:
            ingress["error"] = refused
        else:
            taken = self._fan_out(trace, origin.account, run, origin)
            if not taken and reply and origin.no_responders:
                self._server.router.tell_no_responders(origin, subject, reply)
        trace.done()
        return None

    def routed(
        self, peer: int, account: Account, run: PubRun, *, plain: bool, queues: list[bytes]
    ) -> bool:
        """One message that came from another node. False: it asks for no trace, deliver it."""
        subject, _, headers, _ = run.message(0)
        asked = told.wanted(headers, account, first_server=False)
        if not asked.dest:
            return asked.only
        trace = self._begin(account, asked, run)
        trace.hop = asked.lines.get(told.HOP.decode(), [""])[0]
        trace.add("in", kind=told.ROUTE_KIND, cid=peer, name=self.peer_name(peer),
                  acc=account.name, subj=told.text(subject))  # fmt: skip
        found = account.subs.match(subject)
        for sub in found.plain if plain else ():
            if sub.sink.kind is SinkKind.CLIENT:
                self._to_client(trace, sub, run, None)
        for pool in found.local_queues():
            if pool[0].queue in queues:
                self._to_one_of(pool, lambda sub: self._to_client(trace, sub, run, None))
        trace.done()
        return True

    def _begin(self, account: Account, asked: Wanted, run: PubRun) -> Trace:
        request = told.request_of(asked, run.total_bytes)
        return Trace(account, asked.dest, asked.only, request, self._send)

    def _may_report(self, origin: Connection, dest: bytes) -> bool:
        if dest.startswith(SUBJECTS):
            return False
        allowed = origin.permissions
        return allowed is None or allowed.may_publish(dest, now_ns=time.monotonic_ns())

    # -- takers -----------------------------------------------------------------------------

    def _fan_out(
        self, trace: Trace, account: Account, run: PubRun, origin: Connection | None
    ) -> bool:
        """Every taker in the account; other nodes last. Whether anybody took it."""
        found = account.subs.match(run.message(0)[0])
        routes: list[Subscription] = []

        def take(sub: Subscription) -> bool:
            if sub.sink.kind is SinkKind.ROUTE:
                routes.append(sub)
                return True
            return self._take(trace, sub, run, origin)

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
        self, trace: Trace, sub: Subscription, run: PubRun, origin: Connection | None
    ) -> bool:
        sink = sub.sink
        if sink.kind is SinkKind.CLIENT:
            return self._to_client(trace, sub, run, origin)
        if sink.kind is SinkKind.STREAM:
            return self._storing.store(trace, cast(StreamSink, sink), sub, run, origin)
        if isinstance(sink, StreamImport):
            return self._to_importers(trace, sink, sub, run, origin)
        if isinstance(sink, ServiceImport):
            return self._to_exporter(trace, sink, sub, run, origin)
        return self._to_service(trace, sub, run, origin)

    def _to_client(
        self, trace: Trace, sub: Subscription, run: PubRun, origin: Connection | None,
        *, shown: bytes = b"",
    ) -> bool:  # fmt: skip
        sink = sub.sink
        if not isinstance(sink, Endpoint):  # a conversation of the server's own
            return sink.deliver_run(sub, run, 0, 1, origin)
        error = _obstacle(sink, sub, run.message(0)[0], origin)
        if not error and not trace.only and not sink.deliver_run(sub, run, 0, 1, origin):
            error = told.CLIENT_CLOSED
        trace.egress(sink.cid, sink.connect.name, account=sub.account.name,
                     sub=shown or sub.subject, queue=sub.queue, error=error)  # fmt: skip
        return not error

    def _to_service(
        self, trace: Trace, sub: Subscription, run: PubRun, origin: Connection | None
    ) -> bool:
        """What this server answers itself. The system account lets no trace in."""
        subject = run.message(0)[0]
        if subject.startswith(_SYSTEM_SERVICES) and not subject.startswith(_NOT_IMPORTED):
            shown = told.text(subject)
            system = self._server.options.system_account
            trace.add("si", acc=system, **{"from": shown, "to": shown})
            if trace.only:
                return False
        return sub.sink.deliver_run(sub, run, 0, 1, origin)

    # -- other accounts ---------------------------------------------------------------------

    def _to_importers(
        self, trace: Trace, sink: StreamImport, sub: Subscription, run: PubRun,
        origin: Connection | None,
    ) -> bool:  # fmt: skip
        """A stream is exported to each subscription over there by itself."""

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
            trace.add("se", acc=there.account.name, to=told.text(across.message(0)[0]))
            if not sink.rule.allow_trace:
                return trace.only or there.sink.deliver_run(there, across, 0, 1, origin)
            if there.sink.kind is SinkKind.ROUTE:
                return self._to_nodes(trace, sink.target, [there], across)
            if there.sink.kind is SinkKind.CLIENT:
                shown = sub.subject if has_wildcard(there.subject) else run.message(0)[0]
                return self._to_client(trace, there, across, origin, shown=shown)
            return self._take(trace, there, across, origin)

        return sink.carry(run.message(0), origin, publish)

    def _to_exporter(
        self, trace: Trace, sink: ServiceImport, sub: Subscription, run: PubRun,
        origin: Connection | None,
    ) -> bool:  # fmt: skip
        subject, reply, headers, payload = run.message(0)
        to = sink.mapped(subject)
        if to is None:
            return False
        trace.add("si", acc=sink.target.name,
                  **{"from": told.text(subject), "to": told.text(to)})  # fmt: skip
        # The service may pass headers on: what it sends is not the importer's to trace.
        run = PubRun.of([(subject, reply, told.disabled(headers), payload)])
        if not sink.export.allow_trace:
            return not trace.only and sink.deliver_run(sub, run, 0, 1, origin)

        def publish(account: Account, *message: bytes) -> int:
            return self._fan_out(trace, account, PubRun.of([cast(Message, message)]), origin)

        return sink.carry(run.message(0), origin, publish)

    # -- other nodes ------------------------------------------------------------------------

    def _to_nodes(
        self, trace: Trace, account: Account, routes: list[Subscription], run: PubRun
    ) -> bool:
        """Each hears of the message once, under its own number of the way."""
        by_peer: dict[Any, list[Subscription]] = {}
        for sub in routes:
            by_peer.setdefault(sub.sink, []).append(sub)
        subject, reply, headers, payload = run.message(0)
        home = account is trace.account
        taken = False
        for sink, subs in by_peer.items():
            name = self.peer_name(sink.peer)
            if not home and trace.only:
                trace.egress(sink.peer, name, kind=told.ROUTE_KIND, error=told.NOT_SENT_THERE)
                continue
            hop = trace.next_hop() if home else ""
            block = told.with_header(headers, told.HOP, hop.encode()) if home else (
                told.disabled(headers)
            )  # fmt: skip
            across = PubRun.of([(subject, reply, block, payload)])
            for sub in subs:
                sink.deliver_run(sub, across, 0, 1, None)
            trace.egress(sink.peer, name, kind=told.ROUTE_KIND, hop=hop,
                         error="" if home else told.NOT_TRACED_THERE)  # fmt: skip
            taken = True
        return taken

    # -- the report -------------------------------------------------------------------------

    def _send(self, trace: Trace) -> None:
        self._sent += 1
        body = msgspec.json.encode(trace.document(self._about_server()))
        headers = b""
        accepted = trace.request["header"].get("Accept-Encoding", [""])[0].lower()
        if "gzip" in accepted and "snappy" not in accepted and "s2" not in accepted:
            body = gzip.compress(body)
            headers = b"NATS/1.0\r\n%b: %b\r\n\r\n" % _GZIP
        self._server.router.publish(trace.account, trace.dest, b"", headers, body)

    def _about_server(self) -> dict[str, Any]:
        server = self._server
        jetstream = server.options.jetstream
        about: dict[str, Any] = {"name": server.name, "host": server.host, "id": server.id}
        cluster = server.options.cluster
        if cluster is not None and cluster.name:
            about["cluster"] = cluster.name
        if jetstream is not None and jetstream.domain:
            about["domain"] = jetstream.domain
        return about | {"ver": VERSION, "jetstream": jetstream is not None,
                        "flags": int(jetstream is not None), "seq": self._sent,
                        "time": timestamp(time.time())}  # fmt: skip


def _refusal(origin: Connection, run: PubRun) -> str:
    """Why the client may not publish this; it has been told."""
    refused = refusals(run).get(0)
    if refused is not None:
        origin.error(refused)
        return refused
    subject = run.message(0)[0]
    if origin.guarded and not origin.may_publish(run, subject, 0, 1):
        return f'Permissions Violation for Publish to "{subject.decode(errors="backslashreplace")}"'
    return ""


def _obstacle(sink: Endpoint, sub: Subscription, subject: bytes, origin: Connection | None) -> str:
    if sink is origin and not origin.echo:
        return told.NO_ECHO
    allowed = sink.permissions
    if allowed is not None and allowed.filters(sub.subject) and not allowed.may_receive(subject):
        return told.DENIED
    if sub.closed:
        return told.SUBSCRIPTION_CLOSED
    return told.CLIENT_CLOSED if sink.closed else ""
