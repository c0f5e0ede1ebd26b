"""Who receives a consumer's messages: waiting pull requests, or the push subject.

Owns: whose turn it is, what fits, and the statuses and heartbeats the receivers get.
May not touch: ack state and positions; the cursor tells sizes and sequences.
Spec: JetStream push specifics (heartbeats, flow control, rate limit), pull distribution."""

from __future__ import annotations

from typing import Final, Protocol

from broker.jetstream.config import AckPolicy, ConsumerConfig
from broker.jetstream.delivery.cursor import Cursor
from broker.jetstream.delivery.effects import Effect, StatusMessage
from broker.jetstream.delivery.flow_control import FlowControl, RateLimit
from broker.jetstream.delivery.pinning import Pin
from broker.jetstream.delivery.pull_queue import (
    SIZE_EXCEEDS_MAX_BYTES,
    Interest,
    PullRequest,
    WaitingQueue,
    idle_heartbeat,
    status,
)
from broker.store.block.block import Rows

FLOW_CONTROL_REQUEST: Final = status("100 FlowControl Request")
UNLIMITED: Final = 1 << 62


class Receivers(Protocol):
    @property
    def turns(self) -> int:
        """How many receivers share what there is."""

    def wanted(self) -> int:
        """Messages that could be taken by all of them."""

    def next(self, now: int) -> PullRequest | None:
        """Whose turn it is; None when nobody may receive now."""

    def fit(
        self, receiver: PullRequest, rows: Rows, indices: list[int], now: int, *, ahead: int = 0
    ) -> int:
        """How many of these may go to the one whose turn it is, behind `ahead` others; their bytes
        are charged. 0: it could not take even the first and is out of the way."""

    def served(self, receiver: PullRequest, count: int, now: int) -> None:
        """They went out."""

    def due(self, now: int) -> None:
        """Timeouts and heartbeats."""

    def next_deadline(self, pumped_at: int) -> int | None: ...


class PullReceivers:
    """The waiting requests of a pull consumer."""

    def __init__(
        self,
        config: ConsumerConfig,
        cursor: Cursor,
        effects: list[Effect],
        has_interest: Interest,
        *,
        pin: Pin | None = None,
    ) -> None:
        self.waiting = WaitingQueue(config.max_waiting)
        self.pin = pin
        self._cursor = cursor
        self._effects = effects
        self._has_interest = has_interest
        self._listening: set[bytes] = set()  # replies found to have interest in this pump
        self._now = 0

    @property
    def turns(self) -> int:
        return len(self.waiting)

    def wanted(self) -> int:
        return self.waiting.wanted()

    def next(self, now: int) -> PullRequest | None:
        self._now = now
        if self.pin is not None and (self._cursor.redelivery.queued or self._cursor.count(now)):
            self.pin.end_stale(self.waiting)
        return self.waiting.head(self._listened, self._eligible)

    def fit(
        self, receiver: PullRequest, rows: Rows, indices: list[int], now: int, *, ahead: int = 0
    ) -> int:
        count = self._fit(receiver, rows, indices, now, ahead)
        if count and self.pin is not None:
            self.pin.served(receiver, now)
        return count

    def _fit(
        self, receiver: PullRequest, rows: Rows, indices: list[int], now: int, ahead: int
    ) -> int:
        if not receiver.max_bytes:
            return len(indices)
        for k, index in enumerate(indices):
            size = len(rows.subject(index)) + self._cursor.message_size(
                rows, index, now, ahead=ahead + k
            )
            if not receiver.charge(size):
                if k == 0:
                    self._effects.append(receiver.rest(SIZE_EXCEEDS_MAX_BYTES))
                    self.waiting.close(receiver)
                return k
            if not receiver.max_bytes:
                return k + 1
        return len(indices)

    def served(self, receiver: PullRequest, count: int, now: int) -> None:
        ended = self.waiting.served(receiver, count, now)
        if ended is not None:
            self._effects.append(ended)

    def due(self, now: int) -> None:
        if self.pin is not None:
            self.pin.due(now)
        self._listening.clear()
        self._effects += self.waiting.due(now, self._heartbeat)

    def sweep(self, now: int) -> None:
        """Only live requests that somebody listens for remain."""
        self.due(now)
        self.waiting.prune(self._has_interest)

    def next_deadline(self, pumped_at: int) -> int | None:
        at = self.waiting.next_deadline()
        if self.pin is None or not self.pin.id:
            return at
        return self.pin.expires_at if at is None else min(at, self.pin.expires_at)

    def _listened(self, reply: bytes) -> bool:
        """Asked once per pump and reply: a batch looks at its request many times."""
        if reply in self._listening:
            return True
        if not self._has_interest(reply):
            return False
        self._listening.add(reply)
        return True

    def _eligible(self, request: PullRequest) -> bool:
        """Pinned: only the one. Overflow: only when enough is pending, or enough of it unacked."""
        if self.pin is not None and not self.pin.admits(request):
            return False
        if not request.min_pending and not request.min_ack_pending:
            return True
        return 0 < request.min_pending <= self._cursor.count(
            self._now
        ) or 0 < request.min_ack_pending <= len(self._cursor.live.pending)

    def _heartbeat(self) -> bytes:
        cursor = self._cursor
        return idle_heartbeat(consumer_seq=cursor.live.consumer_seq, stream_seq=cursor.passed)


class PushReceiver:
    """The deliver subject of a push consumer, while somebody is subscribed to it."""

    turns = 1

    def __init__(
        self,
        config: ConsumerConfig,
        cursor: Cursor,
        effects: list[Effect],
        *,
        flow_prefix: str,
        rate_burst_bytes: int,
    ) -> None:
        self.bound = False
        self.flow = FlowControl(flow_prefix) if config.flow_control else None
        self._rate = (
            RateLimit(bits_per_s=config.rate_limit_bps, burst_bytes=rate_burst_bytes)
            if config.rate_limit_bps
            else None
        )
        self._receiver = PullRequest(config.deliver_subject.encode(), batch=UNLIMITED)
        self._cursor = cursor
        self._effects = effects
        self._heartbeat_ns = config.idle_heartbeat
        self._heartbeat_at = 0
        # Acks that ride on flow control answers: asked for when half of what may be pending is,
        # and when nothing else goes out. 0: this consumer's acks come in another way.
        by_flow = config.ack_policy is AckPolicy.FLOW_CONTROL
        self._ask_from = max(config.max_ack_pending // 2, 1) if by_flow else 0

    def bind(self, *, bound: bool, now: int) -> None:
        self.bound = bound
        self._heartbeat_at = now + self._heartbeat_ns
        if self.flow is not None:
            self.flow.restart()

    def wanted(self) -> int:
        return UNLIMITED

    def next(self, now: int) -> PullRequest | None:
        if not self.bound or (self.flow is not None and self.flow.blocked):
            return None
        if self._rate is not None and self._rate.ready_at() > now:
            return None
        return self._receiver

    def fit(
        self, receiver: PullRequest, rows: Rows, indices: list[int], now: int, *, ahead: int = 0
    ) -> int:
        if self.flow is None and self._rate is None:
            return len(indices)
        for k, index in enumerate(indices):
            size = len(receiver.reply) + self._cursor.message_size(
                rows, index, now, ahead=ahead + k
            )
            if self.flow is not None:
                self.flow.sent(size)
            if self._rate is not None:
                self._rate.sent(size, now)
            if self.next(now) is None:
                return k + 1
        return len(indices)

    def served(self, receiver: PullRequest, count: int, now: int) -> None:
        self._heartbeat_at = now + self._heartbeat_ns
        reply = self.flow.ask() if self.flow is not None else b""
        if reply:
            self._effects.append(StatusMessage(receiver.reply, FLOW_CONTROL_REQUEST, reply))

    def due(self, now: int) -> None:
        """A heartbeat when nothing went out for the interval."""
        if self.bound and self._ask_from and self.flow is not None:
            pending = len(self._cursor.live.pending)
            idle = pending > 0 and self._heartbeat_at <= now
            reply = self.flow.ask(wanted=True) if idle or pending >= self._ask_from else b""
            if reply:
                self._effects.append(
                    StatusMessage(self._receiver.reply, FLOW_CONTROL_REQUEST, reply)
                )
        if self.bound and self._heartbeat_ns and self._heartbeat_at <= now:
            self._effects.append(StatusMessage(self._receiver.reply, self._heartbeat()))
            self._heartbeat_at = now + self._heartbeat_ns

    def next_deadline(self, pumped_at: int) -> int | None:
        if not self.bound:
            return None
        candidates = [self._heartbeat_at] if self._heartbeat_ns else []
        if self._rate is not None and self._rate.ready_at() > pumped_at:
            candidates.append(self._rate.ready_at())
        return min(candidates, default=None)

    def _heartbeat(self) -> bytes:
        cursor = self._cursor
        return idle_heartbeat(
            consumer_seq=cursor.live.consumer_seq,
            stream_seq=cursor.passed,
            stalled=self.flow.awaiting if self.flow is not None else b"",
        )
