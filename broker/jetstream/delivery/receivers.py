"""The receivers of a consumer: its waiting pull requests, or its push subject.

Owns: whose turn it is, how much fits, and the statuses and heartbeats that receivers get.
May not touch: ack state and positions; sizes and sequences come from the cursor.
Spec: JetStream push consumers (heartbeats, flow control, rate limit), pull consumers (no_wait,
max_waiting, priority groups)."""

from __future__ import annotations

from typing import Final, Protocol

from broker.jetstream.config import ConsumerConfig, PriorityPolicy
from broker.jetstream.delivery.cursor import Cursor
from broker.jetstream.delivery.effects import Effect, StatusMessage
from broker.jetstream.delivery.flow_control import FlowControl, RateLimit
from broker.jetstream.delivery.max_ack_pending import UNLIMITED, request_acks_from
from broker.jetstream.delivery.pinning import PIN_MISMATCH, Pin
from broker.jetstream.delivery.pull_queue import (
    EXCEEDED_MAX_WAITING,
    NO_MESSAGES,
    REQUESTS_PENDING,
    SIZE_EXCEEDS_MAX_BYTES,
    Interest,
    PullQueue,
    PullRequest,
    idle_heartbeat,
    parse_pull,
    status,
)
from broker.store.block.codec import Rows

FLOW_CONTROL_REQUEST: Final = status("100 FlowControl Request")
SWEPT_AT_ONCE: Final = 512  # up to this many waiting requests, every new request sweeps them
SWEPT_EVERY_NS: Final = 100_000_000  # with more, they are swept at most this often


class Receivers(Protocol):
    """Pull requests or the push subject, as dispatch sees them."""

    @property
    def turns(self) -> int:
        """How many receivers share the messages."""

    @property
    def conditional(self) -> bool:
        """Whether one of them receives only while enough messages are pending, or
        unacknowledged."""

    def wanted(self) -> int:
        """How many messages all of them together can take."""

    def next(self, now: int) -> PullRequest | None:
        """The receiver whose turn it is; None when no receiver may receive now."""

    def fit(
        self, receiver: PullRequest, rows: Rows, indices: list[int], now: int, *, ahead: int = 0
    ) -> int:
        """How many of these messages `receiver` can take, after `ahead` others that are not yet
        recorded; their bytes are charged to it. 0: not even the first fits, and the request was
        ended."""

    def served(self, receiver: PullRequest, count: int, now: int) -> None:
        """`count` messages were sent to `receiver`."""

    def due(self, now: int) -> None:
        """Send the timeouts and heartbeats that are due."""

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
        pin_seed: str,
    ) -> None:
        """`pin_seed` is different for every consumer that ever existed; pin ids are derived from
        it."""
        self.waiting = PullQueue(config.max_waiting)
        self.pin: Pin | None = None
        self._config = config
        self._pin_seed = pin_seed
        self._cursor = cursor
        self._effects = effects
        self._has_interest = has_interest
        self._listening: set[bytes] = set()  # replies found to have interest in this pump
        self._swept = (0, 0)  # time of the last sweep, and how many requests were left
        self._now = 0
        self._set_pin()

    def reconfigure(self, config: ConsumerConfig) -> None:
        old, self._config = self._config, config
        if old.priority_policy is not config.priority_policy:
            self._set_pin()
        if self.pin is not None:
            self.pin.timeout_ns = config.priority_timeout

    def parse(self, body: bytes, reply: bytes, now: int) -> PullRequest | None:
        """Read a pull request; None if it was refused with a status."""
        request = parse_pull(body, reply, now, self._config)
        if isinstance(request, bytes):
            self._effects.append(StatusMessage(reply, request))
            return None
        if self.pin is not None and self.pin.refuses(request, now):
            self._effects.append(StatusMessage(reply, PIN_MISMATCH))
            return None
        return request

    def add(self, request: PullRequest, now: int) -> None:
        """Queue the request, or refuse it with a status."""
        if request.no_wait and not self._can_serve_now(request, now):
            return
        waiting = self.waiting
        if waiting.size >= waiting.capacity:
            self.sweep(now)
        if waiting.size < waiting.capacity:
            waiting.add(request)
        elif not request.heartbeat_ns:  # a client with heartbeats notices missing ones
            self._refuse(request, EXCEEDED_MAX_WAITING)

    def end_no_wait(self, now: int) -> None:
        """End no_wait requests when there is nothing left to deliver."""
        waiting = self.waiting
        if not waiting.size or not any(request.no_wait for request in waiting):
            return
        if self._cursor.counted(now, exact=True) and not self._available(now):
            self._effects += self.waiting.at_end_of_stream()

    @property
    def turns(self) -> int:
        return self.waiting.size

    @property
    def conditional(self) -> bool:
        overflow = self._config.priority_policy is PriorityPolicy.OVERFLOW
        return overflow and any(request.conditional for request in self.waiting)

    def wanted(self) -> int:
        return self.waiting.wanted()

    def next(self, now: int) -> PullRequest | None:
        self._now = now
        if self.pin is not None and (self._cursor.redelivery.queued or self._cursor.count(now)):
            self.pin.end_outdated(self.waiting)
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
        """Drop requests that have expired or whose reply subject has no subscriber. If there are
        many and they were checked a moment ago, drop only expired ones: a client may send requests
        faster than they can be checked."""
        self.due(now)
        at, left = self._swept
        if now - at < SWEPT_EVERY_NS and left > SWEPT_AT_ONCE:
            return
        self.waiting.prune(self._has_interest)
        self._swept = now, self.waiting.size

    def next_deadline(self, pumped_at: int) -> int | None:
        at = self.waiting.next_deadline()
        if self.pin is None or not self.pin.id:
            return at
        return self.pin.expires_at if at is None else min(at, self.pin.expires_at)

    def _listened(self, reply: bytes) -> bool:
        """Interest is looked up once per pump and reply: a batch checks its request many times."""
        if reply in self._listening:
            return True
        if not self._has_interest(reply):
            return False
        self._listening.add(reply)
        return True

    def _eligible(self, request: PullRequest) -> bool:
        """Pinned: only the pinned client. Overflow: only while enough messages are pending or
        unacknowledged."""
        if self.pin is not None and not self.pin.admits(request):
            return False
        if not request.min_pending and not request.min_ack_pending:
            return True
        return 0 < request.min_pending <= self._cursor.count(
            self._now
        ) or 0 < request.min_ack_pending <= len(self._cursor.live.pending)

    def _can_serve_now(self, request: PullRequest, now: int) -> bool:
        """Whether messages are left for a no_wait request, after the requests that already wait. If
        not, it is refused, unless it may wait until it expires."""
        available = self._available(now)
        if available == 0:
            if request.expires_at:
                return True
            self._refuse(request, NO_MESSAGES)
            return False
        if self.turns:
            self.sweep(now)
        if self.wanted() > available:
            self._refuse(request, REQUESTS_PENDING)
            return False
        return True

    def _available(self, now: int) -> int:
        return self._cursor.count(now, exact=True) + self._cursor.redelivery.queued

    def _refuse(self, request: PullRequest, line: str) -> None:
        self._effects.append(StatusMessage(request.reply, status(line)))

    def _set_pin(self) -> None:
        config = self._config
        self.pin = None
        if config.priority_policy is PriorityPolicy.PINNED_CLIENT:
            self.pin = Pin(
                self._pin_seed,
                group=config.priority_groups[0],
                timeout_ns=config.priority_timeout,
                effects=self._effects,
            )

    def _heartbeat(self) -> bytes:
        cursor = self._cursor
        return idle_heartbeat(consumer_seq=cursor.live.consumer_seq, stream_seq=cursor.passed)


class PushReceiver:
    """The deliver subject of a push consumer, which receives while it has a subscriber."""

    turns = 1
    conditional = False

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
        self._request_acks_from = request_acks_from(config)

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
        reply = self.flow.request() if self.flow is not None else b""
        if reply:
            self._effects.append(StatusMessage(receiver.reply, FLOW_CONTROL_REQUEST, reply))

    def due(self, now: int) -> None:
        """Send a heartbeat when nothing was sent for the interval; with ack policy flow_control,
        request acks then as well, and when many messages are pending."""
        threshold = self._request_acks_from
        if self.bound and threshold and self.flow is not None:
            pending = len(self._cursor.live.pending)
            idle = pending > 0 and self._heartbeat_at <= now
            reply = self.flow.request(force=True) if idle or pending >= threshold else b""
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
