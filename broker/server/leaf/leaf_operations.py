"""The operations of a leaf node connection: parse, carry out in order, yield when a turn is over.

Owns: the parser, and the operations that wait for the next turn or for a slow authentication.
May not touch: the socket; who the other side is (the connection decides).
Spec: leaf node protocol. Invalid input closes this connection and affects no other."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Protocol

from broker.server.client.close_reason import VIOLATION_REASONS, ClosableConnection, Reason
from broker.server.client.connection_timers import ConnectionTimers
from broker.server.client.outbound import Outbound
from broker.server.leaf.leaf_profile import FIRST_LINE_MAX, LINE_MAX, LeafProfile
from broker.server.leaf.leaf_sink import EVERYTHING, LeafSink
from broker.server.process.log import logger
from broker.server.routing.fair_queue import TURN_S
from broker.server.routing.mapped_runs import mapped_run
from broker.wire import ClientParser, Op, ProtocolViolation, PubRun

LOOK_MASK = 63  # the clock is read at every 64th operation
ACKS = b"$JS.ACK."


class LeafPeer(ClosableConnection, Protocol):
    """The connection, as its operations see it."""

    @property
    def cid(self) -> int: ...
    @property
    def sink(self) -> LeafSink | None:
        """None: the other side has not been admitted yet."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def queue(self, data: bytes) -> None: ...
    def heard_pong(self) -> None: ...
    def received_info(self, text: bytes) -> None: ...
    def received_connect(self, text: bytes) -> None: ...
    def received_error(self, text: str) -> None: ...
    def received_subscription(self, subject: bytes, queue: bytes, weight: int) -> None: ...
    def refused_message(self, subject: bytes) -> None: ...


class LeafOperations:
    """Everything the other server sends passes through `receive`."""

    __slots__ = (
        "_chunks", "_context", "_held", "_outbound", "_parser", "_peer", "_timers", "_unfinished",
        "_violation",
    )  # fmt: skip

    def __init__(
        self, peer: LeafPeer, profile: LeafProfile, outbound: Outbound, timers: ConnectionTimers
    ) -> None:
        self._peer = peer
        self._context = profile.context
        self._outbound = outbound
        self._timers = timers
        limits = profile.server_options.limits
        self._parser = ClientParser(
            max_control_line=FIRST_LINE_MAX, max_payload=limits.max_payload, leaf=True
        )
        self._held: list[Any] | None = None
        self._unfinished: tuple[PubRun, int] | None = None  # a run, and the row to continue from
        self._chunks: deque[bytes] = deque()  # not parsed yet; empty unless operations wait
        self._violation: ProtocolViolation | None = None

    @property
    def _account(self) -> str:
        sink = self._peer.sink
        return "" if sink is None else sink.account.name

    def receive(self, chunk: bytes) -> None:
        turns, account = self._context.turns, self._account
        if self._held is not None:
            self._chunks.append(chunk)  # at most what was read before the socket was paused
        elif turns.exhausted(account):
            self._chunks.append(chunk)
            self._end_turn([])
        else:
            began = time.perf_counter()
            self._take(chunk)
            turns.used(account, time.perf_counter() - began)

    def _take(self, chunk: bytes) -> None:
        try:
            events: list[Any] = self._parser.receive(chunk)
        except ProtocolViolation as found:
            self._violation, events = found, found.events
        self._carry_out(events)
        if self._outbound.flush_due:
            self._outbound.flush()
        self._end_if_violated()

    def _end_if_violated(self) -> None:
        violation = self._violation
        if violation is None or self._held is not None or self._outbound.closed:
            return
        self._chunks.clear()
        reason = VIOLATION_REASONS.get(violation.text or "", Reason.PARSE_ERROR)
        logger.error("%s - %s", self._peer.label, violation)
        if violation.text is None:
            self._peer.close(reason)
        else:
            self._peer.fail(violation.text, reason)

    def _carry_out(self, events: list[Any]) -> None:
        if self._held is not None:
            self._held.extend(events)
            return
        deadline = time.perf_counter() + TURN_S
        for position, event in enumerate(events):
            if position & LOOK_MASK == LOOK_MASK and time.perf_counter() > deadline:
                self._end_turn(events[position:])
                return
            if event[0] is Op.LMSG:
                self._messages(event[1], event[2])
            else:
                self._operation(event)
            if self._outbound.closed:
                return
            if self._held is not None:
                self._held.extend(events[position + 1 :])
                return
        if events and time.perf_counter() > deadline:
            self._end_turn([])

    def admitted(self) -> None:
        """The other side is authenticated: allow long control lines."""
        self._parser.max_control_line = LINE_MAX

    # -- turns ------------------------------------------------------------------------------

    def wait(self) -> None:
        """Hold everything received until `go_on`: the other side is being authenticated."""
        self._held = []
        self._peer.pause_reading()

    def go_on(self) -> None:
        held, self._held = self._held or [], None
        self._peer.resume_reading()
        if not self._outbound.closed:
            self._continue(held)

    def _end_turn(self, held: list[Any]) -> None:
        self._held = held
        self._peer.pause_reading()
        self._context.turns.wait(self._next_turn, self._account, self._peer.cid)

    def _next_turn(self) -> None:
        held, self._held = self._held or [], None
        self._peer.resume_reading()
        if self._outbound.closed:
            return
        if self._unfinished is not None:
            self._publish(*self._unfinished)
        self._continue(held)

    def _continue(self, held: list[Any]) -> None:
        self._carry_out(held)
        if self._held is None and self._chunks and not self._outbound.closed:
            self._take(self._chunks.popleft())
            if self._held is None and self._chunks and not self._outbound.closed:
                self._end_turn([])
        self._end_if_violated()

    # -- operations -------------------------------------------------------------------------

    def _operation(self, event: tuple[Any, ...]) -> None:
        peer, op = self._peer, event[0]
        match op:
            case Op.PING:
                peer.queue(b"PONG\r\n")
            case Op.PONG:
                self._timers.pong()
                peer.heard_pong()
            case Op.INFO:
                peer.received_info(event[1])
            case Op.CONNECT:
                peer.received_connect(event[1])
            case Op.ERR:
                peer.received_error(event[1].decode(errors="replace").strip("'"))
            case Op.LSUB | Op.LUNSUB:
                self._interest(event)
            case _:
                pass

    def _interest(self, event: tuple[Any, ...]) -> None:
        sink = self._peer.sink
        self._timers.activity()
        if sink is None:
            self._unauthorized()
        elif event[0] is Op.LSUB:
            self._peer.received_subscription(event[1], event[2], event[3])
        else:
            sink.unsubscribe(event[1], event[2])

    def _unauthorized(self) -> None:
        self._peer.fail("Authorization Violation", Reason.AUTHENTICATION_VIOLATION)

    def _messages(self, run: PubRun, queues: bytes) -> None:
        sink = self._peer.sink
        if sink is None:
            self._unauthorized()
            return
        sink.in_msgs += len(run)
        sink.in_bytes += run.total_bytes
        self._timers.activity()
        sink.groups = frozenset(queues.split(b" ")) if queues else EVERYTHING
        mappings = sink.account.mappings
        if mappings is not None:
            run = mapped_run(mappings, run)
        if run.any_reply(0, len(run)) and any(
            b"@" in (reply := run.names(row)[1]) and reply.startswith(ACKS)
            for row in range(len(run))
        ):
            self._one_by_one(sink, run)
            self._check_refused(sink)
        else:
            self._publish(run, 0)

    def _one_by_one(self, sink: LeafSink, run: PubRun) -> None:
        """Messages of a remote stream for a consumer here. They are addressed to the deliver
        subject; their own subject follows the reply, after `@`."""
        router = self._context.router
        for row in range(len(run)):
            to, reply, headers, payload = run.message(row)
            if sink.guarded and sink.check_publish(to, 0, 1) == 0:
                continue
            subject = to
            if reply.startswith(ACKS):
                reply, _, shown = reply.partition(b"@")
                subject = shown or to
            router.publish(
                sink.account, subject, reply, headers, payload, deliver_to=to, publisher=sink
            )

    def _publish(self, run: PubRun, first: int) -> None:
        sink = self._peer.sink
        self._unfinished = None
        if sink is None or not len(run):
            return
        row = self._context.router.publish_run(sink, run, first)
        if not self._check_refused(sink) and row < len(run):
            self._unfinished = (run, row)
            self._end_turn([])

    def _check_refused(self, sink: LeafSink) -> bool:
        if sink.refused:
            self._peer.refused_message(sink.refused)
        return bool(sink.refused)
