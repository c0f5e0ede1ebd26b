"""The server at the other end of a leaf node connection, as the router sees it.

Owns: its subscriptions here, its traffic counters, the messages collected for it in one turn of the
event loop, and their encoding.
May not touch: routing; the router has decided that the message goes there.
Bounds: the outbound buffer, as for a client (broker/server/client/outbound.py); a queue group
counts as at most WEIGHT_MAX members.
Spec: leaf node protocol, LS+, LS-, LMSG and HMSG."""

from __future__ import annotations

import asyncio
from typing import Protocol

from broker.accounts import Account
from broker.server.client.outbound import Outbound
from broker.server.leaf.leaf_rules import LeafRules
from broker.server.routing.router import Router
from broker.server.routing.targeted_rows import TargetedRows, pieces
from broker.subjects import (
    CLUSTER_WIDE,
    PublishingConnection,
    Sink,
    SinkKind,
    Subscription,
    valid_subject,
)
from broker.wire import PubRun, encode_leaf

WEIGHT_MAX = 1024  # members of a queue group: each is an entry of the group's list
QUEUED_BYTES_MAX = 1 << 20  # collected in a turn of the loop before they are encoded
EVERYTHING: frozenset[bytes] = frozenset()


class PausedReading(Protocol):
    """The connection: reading from it is paused while subscribers are slow."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class LeafSink:
    """Sink and publisher of one connection. The kind is LEAF for a leaf node of ours, HUB for the
    server whose leaf node we are."""

    echo = False
    no_responders = False
    watchful = True
    rules = None  # the publisher's own server has checked the publisher's permissions

    def __init__(
        self,
        cid: int,
        account: Account,
        router: Router,
        *,
        kind: SinkKind,
        cluster: str,
        outbound: Outbound,
        reading: PausedReading,
        limits: LeafRules,
    ) -> None:
        self.cid = cid
        self.account = account
        self.kind = kind
        self.cluster = cluster  # of the other server
        self.headers_ok = True
        self.limits = limits
        self.guarded = limits.guarded
        self.groups = EVERYTHING  # queue groups that the current messages are for
        self.subs: dict[tuple[bytes, bytes], Subscription] = {}
        self.in_msgs = self.in_bytes = self.out_msgs = self.out_bytes = 0
        # To a hub: whether this node announces our cluster's streams and JetStream API.
        self.speaks = True
        self.refused = b""  # first subject received that the other side may not publish to
        self.pause_reading = reading.pause_reading
        self.resume_reading = reading.resume_reading
        self._outbound = outbound
        self._router = router
        self._queued: list[TargetedRows] = []
        self._queued_bytes = 0
        self._single: tuple[bytes, ...] | None = None  # what _deliver_one queued last
        self._inspected: set[Subscription] = set()

    # -- its subscriptions ------------------------------------------------------------------

    def subscribe(self, subject: bytes, queue: bytes, weight: int) -> bool:
        """False: the subject is invalid."""
        key = (subject, queue)
        weight = min(weight, WEIGHT_MAX) if queue else 1
        known = self.subs.get(key)
        if known is not None and known.weight == weight:
            return True
        if not valid_subject(subject, wildcards=True):
            return False
        sub = Subscription(self, self.account, subject, queue, weight=weight)
        self.subs[key] = sub
        if self.limits.inspects(subject):
            self._inspected.add(sub)
        self._router.subscribe(self.account, sub)
        if known is not None:
            self._drop(known)
        return True

    def unsubscribe(self, subject: bytes, queue: bytes) -> None:
        sub = self.subs.pop((subject, queue), None)
        if sub is not None:
            self._drop(sub)

    def _drop(self, sub: Subscription) -> None:
        self._inspected.discard(sub)
        self._router.unsubscribe(self.account, sub)

    # -- its messages -----------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._outbound.closed

    def skips(self, sink: Sink) -> bool:
        """Messages do not go back to the server they came from, nor to another server of its
        cluster. Messages from a hub are not routed to our other nodes, each of which has its own
        connection to the hub; only the node that speaks for the cluster passes them to cluster-wide
        subscriptions (streams, JetStream API)."""
        if sink is self or (not self.speaks and sink.kind in CLUSTER_WIDE):
            return True
        if sink.kind is SinkKind.ROUTE:
            return self.kind is SinkKind.HUB
        return (
            sink.kind is SinkKind.LEAF
            and bool(self.cluster)
            and isinstance(sink, LeafSink)
            and sink.cluster == self.cluster
        )

    def check_publish(self, subject: bytes, start: int, stop: int) -> int:
        if self.limits.may_receive(subject):
            return stop
        if self.limits.strict:
            self.refused = self.refused or subject
        return start

    # -- deliveries -------------------------------------------------------------------------

    def deliver(
        self, sub: Subscription, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> bool:
        return self._deliver_one(sub, subject, (subject, reply, headers, payload))

    def deliver_as(
        self, sub: Subscription, to: bytes, message: tuple[bytes, bytes, bytes, bytes]
    ) -> bool:
        """A message of a stream, for the subscriptions on `to`. Subscribers see its own subject,
        which is sent after the reply."""
        return self._deliver_one(sub, to, message)

    def _deliver_one(
        self, sub: Subscription, to: bytes, message: tuple[bytes, bytes, bytes, bytes]
    ) -> bool:
        # A message for several subscriptions arrives in consecutive calls with the same objects.
        # Those share one run, so that the message crosses the link once.
        single = (to, *message)
        known = self._single
        if known is not None and all(a is b for a, b in zip(known, single, strict=True)):
            run = self._queued[-1].run
        else:
            subject, reply, headers, payload = message
            if subject is not to and subject != to and reply:
                reply = reply + b"@" + subject
            run = PubRun.of([(to, reply, headers, payload)])
        taken = self.deliver_run(sub, run, 0, 1, None)
        self._single = single if taken else None
        return taken

    def deliver_run(
        self,
        sub: Subscription,
        run: PubRun,
        start: int,
        stop: int,
        publisher: PublishingConnection | None,
    ) -> bool:
        self._single = None
        outbound = self._outbound
        if outbound.closed or sub.closed:
            return False
        if sub in self._inspected:
            allowed = [
                (first, last)
                for subject, first, last in run.segments(start, stop)
                if self.limits.may_send(subject)
            ]
            for first, last in allowed:
                self._collect(sub, run, first, last)
            if not allowed:
                return False
        else:
            self._collect(sub, run, start, stop)
        if publisher is not None and (
            outbound.queued_bytes > outbound.stall_above
            or outbound.unsent.bytes > outbound.max_pending
        ):
            outbound.wait_for_readers(publisher)
        return True

    def _collect(self, sub: Subscription, run: PubRun, start: int, stop: int) -> None:
        last = self._queued[-1] if self._queued else None
        if last is None:
            asyncio.get_running_loop().call_soon(self.flush)
        elif last.add_target(run, start, stop, sub.queue):
            return
        if self._queued_bytes > QUEUED_BYTES_MAX and last is not None and last.run is not run:
            self._encode()
        self._queued.append(TargetedRows("", run, start, stop, [sub.queue]))
        self._queued_bytes += run.size(start, stop)

    def flush(self) -> None:
        if self._queued:
            self._encode()

    def _encode(self) -> None:
        queued, self._queued = self._queued, []
        self._queued_bytes = 0
        self._single = None
        for piece in pieces(queued):
            run, start, stop = piece.run, piece.start, piece.stop
            if run.has_headers and not self.headers_ok:
                rows = [run.message(row) for row in range(start, stop)]
                run = PubRun.of([(subject, reply, b"", data) for subject, reply, _, data in rows])
                start, stop = 0, len(rows)
            queues = b" ".join(queue for queue in piece.targets if queue)
            self.out_msgs += stop - start
            self.out_bytes += run.size(start, stop)
            self._outbound.queue(encode_leaf(run, start, stop, queues))
