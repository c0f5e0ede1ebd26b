"""Pull requests: their body, the queue they wait in, the statuses that end them.

Owns: parsing and refusing a request, whose turn it is, expiry and heartbeats of requests.
May not touch: messages and ack state; the caller reports what was sent to a request.
Spec: JetStream pull consumers: MSG.NEXT bodies and their status messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Annotated, Final

import msgspec

from broker.jetstream.config import ConsumerConfig, PriorityPolicy
from broker.jetstream.config.consumer_rules import MAX_WAITING_DEFAULT
from broker.jetstream.delivery.effects import StatusMessage
from broker.jetstream.errors import JetStreamError
from broker.jetstream.strict_json import decode
from broker.jetstream.times import go_duration

PRIORITIES: Final = 10
HEARTBEAT_NS_MIN: Final = 10_000_000  # shorter intervals are raised to this
# Per consumer, whatever its max_waiting: a request or a message may have to visit all of them.
WAITING_MAX: Final = 10_000
_TIMERS_SLACK: Final = 1024  # the heap is rebuilt above twice the number of requests plus this

NO_MESSAGES: Final = "404 No Messages"
REQUESTS_PENDING: Final = "408 Requests Pending"
REQUEST_TIMEOUT: Final = "408 Request Timeout"
SIZE_EXCEEDS_MAX_BYTES: Final = "409 Message Size Exceeds MaxBytes"
BATCH_COMPLETED: Final = "409 Batch Completed"
EXCEEDED_MAX_WAITING: Final = "409 Exceeded MaxWaiting"
CONSUMER_DELETED: Final = "409 Consumer Deleted"
CONSUMER_IS_PUSH: Final = "409 Consumer is push based"
LEADERSHIP_CHANGE: Final = "409 Leadership Change"
SERVER_SHUTDOWN: Final = "409 Server Shutdown"

Interest = Callable[[bytes], bool]


def status(line: str) -> bytes:
    """The header block of a status message, e.g. status("404 No Messages")."""
    return f"NATS/1.0 {line}\r\n\r\n".encode()


def idle_heartbeat(*, consumer_seq: int, stream_seq: int, stalled: bytes = b"") -> bytes:
    """`stalled` is the reply subject of an unanswered flow control request."""
    text = (
        f"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: {consumer_seq}\r\n"
        f"Nats-Last-Stream: {stream_seq}\r\n"
    )
    if stalled:
        text += f"Nats-Consumer-Stalled: {stalled.decode()}\r\n"
    return (text + "\r\n").encode()


class PullRequest:
    """One request and how much of it remains.

    `batch` counts down; a request for 0 still gets one message and ends at -1. `max_bytes` 0 means
    no limit on bytes. Times are 0 when not set.
    """

    __slots__ = (
        "batch", "closed", "delivered", "expires_at", "grouped", "heartbeat_at", "heartbeat_ns",
        "max_bytes", "min_ack_pending", "min_pending", "no_wait", "pin_id", "priority", "reply",
    )  # fmt: skip

    def __init__(self, reply: bytes, *, batch: int = 1) -> None:
        self.reply = reply
        self.batch = batch
        self.max_bytes = 0
        self.no_wait = False
        self.expires_at = 0
        self.heartbeat_ns = 0
        self.heartbeat_at = 0
        self.delivered = 0
        self.priority = 0
        self.min_pending = 0
        self.min_ack_pending = 0
        self.grouped = False  # names a priority group
        self.pin_id = ""  # sent by the client, or assigned when it gets pinned
        self.closed = False

    @property
    def conditional(self) -> bool:
        """Served only while enough messages are pending (priority policy overflow)."""
        return bool(self.min_pending or self.min_ack_pending)

    def rest(self, line: str) -> StatusMessage:
        """A status that reports how much of the request was not delivered."""
        header = (
            f"NATS/1.0 {line}\r\nNats-Pending-Messages: {self.batch}\r\n"
            f"Nats-Pending-Bytes: {self.max_bytes}\r\n\r\n"
        )
        return StatusMessage(self.reply, header.encode())

    def charge(self, size: int) -> bool:
        """Subtract a message's size from max_bytes; False if it does not fit. When max_bytes is
        exactly used up, this message is the last one and the request ends without a status."""
        if self.max_bytes == 0:
            return True
        if size > self.max_bytes:
            return False
        self.max_bytes -= size
        if self.max_bytes == 0:
            self.batch = 1
        return True

    def next_event(self) -> int:
        if self.heartbeat_at and (not self.expires_at or self.heartbeat_at < self.expires_at):
            return self.heartbeat_at
        return self.expires_at


PIN_ID_MAX: Final = 64  # characters; ours have 22


class _Body(msgspec.Struct):
    batch: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] = 0
    expires: int = 0
    no_wait: bool = False
    max_bytes: int = 0
    idle_heartbeat: int = 0
    group: str = ""
    id: str = ""
    min_pending: int = 0
    min_ack_pending: int = 0
    priority: int = 0


_decoder: Final = msgspec.json.Decoder(_Body)


def parse_pull(
    payload: bytes, reply: bytes, now: int, config: ConsumerConfig
) -> PullRequest | bytes:
    """The request, or the header block of the status that refuses it."""
    text = payload.strip()
    if text.startswith(b"{"):
        try:
            body = _decoder.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            # Go's decoder also accepts nulls and keys in another case.
            try:
                body = decode(text, _Body, strict=False)
            except JetStreamError as refusal:
                reason = refusal.description.removeprefix("invalid JSON: ")
                return status(f"400 Bad Request - {reason}")
        refused = _refusal(body, config)
        if refused:
            return status(refused)
        return _request(body, reply, now)
    batch = _integer(text) if text else 1
    if 0 < config.max_batch < batch:
        return status(f"409 Exceeded MaxRequestBatch of {config.max_batch}")
    return PullRequest(reply, batch=batch)


def _request(body: _Body, reply: bytes, now: int) -> PullRequest:
    request = PullRequest(reply, batch=body.batch)
    request.max_bytes = max(body.max_bytes, 0)
    request.no_wait = body.no_wait
    request.priority = body.priority
    request.min_pending = body.min_pending
    request.min_ack_pending = body.min_ack_pending
    request.grouped = bool(body.group)
    request.pin_id = body.id[:PIN_ID_MAX]  # it waits here; a longer one matches no pin anyway
    if body.expires > 0:
        request.expires_at = now + body.expires
    if body.idle_heartbeat > 0:
        request.heartbeat_ns = max(body.idle_heartbeat, HEARTBEAT_NS_MIN)
        request.heartbeat_at = now + request.heartbeat_ns
    return request


def _refusal(body: _Body, config: ConsumerConfig) -> str:
    if body.expires < 0:
        return "408 Request Timeout"
    if body.idle_heartbeat > 0 and 2 * body.idle_heartbeat > body.expires:
        return "400 Bad Request - heartbeat value too large"
    if 0 < config.max_batch < body.batch:
        return f"409 Exceeded MaxRequestBatch of {config.max_batch}"
    if 0 < config.max_expires < body.expires:
        return f"409 Exceeded MaxRequestExpires of {go_duration(config.max_expires)}"
    if 0 < config.max_bytes < body.max_bytes:
        return f"409 Exceeded MaxRequestMaxBytes of {config.max_bytes}"
    return _priority_refusal(body, config)


def _priority_refusal(body: _Body, config: ConsumerConfig) -> str:
    policy = config.priority_policy
    if not 0 <= body.priority < PRIORITIES:
        return "400 Bad Request - Priority must be between 0 and 9"
    if (body.min_pending or body.min_ack_pending) and policy is not PriorityPolicy.OVERFLOW:
        return "400 Bad Request - Not a Overflow Priority consumer"
    if body.id and policy is not PriorityPolicy.PINNED_CLIENT:
        return "400 Bad Request - Not a Pinned Client Priority consumer"
    if policy is not PriorityPolicy.NONE:
        if not body.group:
            return "400 Bad Request - Priority Group missing"
        if body.group not in config.priority_groups:
            return "400 Bad Request - Invalid Priority Group"
    return ""


def _integer(text: bytes) -> int:
    """An integer text is a batch size; any other text means one message."""
    try:
        return int(text) if len(text) < 20 else 1
    except ValueError:
        return 1


class PullQueue:
    """Waiting requests, served in turn: a request that is not complete moves to the end.

    Priority 0 is served before 1 and so on. Bound: `capacity`; a request beyond it is refused.
    """

    __slots__ = ("_levels", "_serial", "_timers", "capacity", "size")

    def __init__(self, capacity: int) -> None:
        self.capacity = min(capacity if capacity > 0 else MAX_WAITING_DEFAULT, WAITING_MAX)
        # By priority, created on demand: most consumers use one or none, and a deque takes 760
        # bytes.
        self._levels: dict[int, deque[PullRequest]] = {}
        self.size = 0  # requests that are not closed
        # When to check a request again: its heartbeat or its expiry. A heartbeat postponed by a
        # delivery stays here under its old time, and is armed again when that time comes. A request
        # that was served stays here as well: it may have asked to wait for hours.
        self._timers: list[tuple[int, int, PullRequest]] = []
        self._serial = 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[PullRequest]:
        return (
            request for level in self._levels.values() for request in level if not request.closed
        )

    def add(self, request: PullRequest) -> None:
        level = self._levels.get(request.priority)
        if level is None:
            level = self._levels[request.priority] = deque()
            self._levels = dict(sorted(self._levels.items()))
        if len(level) > 2 * self.capacity:  # expired ones are removed only when their turn comes
            self._levels[request.priority] = level = deque(r for r in level if not r.closed)
        level.append(request)
        self.size += 1
        self._arm(request)

    def wanted(self) -> int:
        """How many messages all requests together still want."""
        wanted = 0
        for level in self._levels.values():
            for request in level:
                if not request.closed:
                    wanted += request.batch if request.batch > 1 else 1
        return wanted

    def head(
        self, has_interest: Interest, eligible: Callable[[PullRequest], bool]
    ) -> PullRequest | None:
        """The request whose turn it is. Requests whose reply subject has no subscriber are dropped
        on the way."""
        for level in self._levels.values():
            for _ in range(len(level)):
                request = level[0]
                if request.closed:
                    level.popleft()
                elif not has_interest(request.reply):
                    self.close(request)
                    level.popleft()
                elif eligible(request):
                    return request
                else:
                    level.rotate(-1)
        return None

    def served(self, request: PullRequest, count: int, now: int) -> StatusMessage | None:
        """`count` messages were sent to `request`, the head of the queue: its turn is over. Returns
        the status to send if the request is complete with bytes left."""
        request.batch -= count
        request.delivered += count
        if request.heartbeat_ns:
            request.heartbeat_at = now + request.heartbeat_ns
        level = self._levels[request.priority]
        if request.batch > 0:
            level.rotate(-1)
            return None
        level.popleft()
        self.close(request)
        return request.rest(BATCH_COMPLETED) if request.max_bytes > 0 else None

    def close(self, request: PullRequest) -> None:
        if not request.closed:
            request.closed = True
            self.size -= 1

    def due(self, now: int, heartbeat: Callable[[], bytes]) -> list[StatusMessage]:
        """The timeouts and heartbeats to send now."""
        found: list[StatusMessage] = []
        while self._timers and self._timers[0][0] <= now:
            request = heappop(self._timers)[2]
            if request.closed:
                continue
            if request.expires_at and request.expires_at <= now:
                self.close(request)
                found.append(request.rest(REQUEST_TIMEOUT))
                continue
            if request.heartbeat_at and request.heartbeat_at <= now:
                if request.no_wait and request.delivered:
                    # It got all it could, and max_ack_pending holds back the rest: nats-server
                    # ends such a request at its first heartbeat.
                    self.close(request)
                    found.append(StatusMessage(request.reply, status(NO_MESSAGES)))
                    continue
                found.append(StatusMessage(request.reply, heartbeat()))
                request.heartbeat_at = now + request.heartbeat_ns
            self._arm(request)
        return found

    def at_end_of_stream(self) -> list[StatusMessage]:
        """Nothing is left to deliver: end the no_wait requests."""
        found: list[StatusMessage] = []
        for request in self:
            if request.no_wait and (request.delivered or not request.expires_at):
                self.close(request)
                found.append(StatusMessage(request.reply, status(NO_MESSAGES)))
        return found

    def prune(self, has_interest: Interest) -> None:
        """Drop every request whose reply subject has no subscriber."""
        for request in self:
            if not has_interest(request.reply):
                self.close(request)

    def close_all(self, line: str) -> list[StatusMessage]:
        """Delivery stops here: end every request with the status `line`."""
        found = [
            request.rest(line)
            if line == SERVER_SHUTDOWN
            else StatusMessage(request.reply, status(line))
            for request in self
        ]
        for level in self._levels.values():
            level.clear()
        self._timers.clear()
        self.size = 0
        return found

    def next_deadline(self) -> int | None:
        while self._timers and self._timers[0][2].closed:
            heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def _arm(self, request: PullRequest) -> None:
        at = request.next_event()
        if at:
            self._serial += 1
            heappush(self._timers, (at, self._serial, request))
            if len(self._timers) > 2 * self.size + _TIMERS_SLACK:
                self._timers = [one for one in self._timers if not one[2].closed]
                heapify(self._timers)
