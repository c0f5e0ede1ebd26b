"""How fast a consumer may send: flow control window, rate limit, replay at the original pace.

Owns: bytes in flight and the unanswered flow control request; the virtual clock of the rate limit;
when the next message of a replay is due.
May not touch: sockets, clocks; sizes and times are arguments.
Spec: JetStream push consumers: flow control (window 2 MiB, doubling to 32 MiB), rate_limit_bps,
replay_policy."""

from __future__ import annotations

from typing import Final

from broker.jetstream.config import ConsumerConfig, ReplayPolicy
from broker.jetstream.consumer.stream_protocol import MessageSource
from broker.jetstream.delivery.cursor import Cursor, RowGroups
from broker.jetstream.times import NS_PER_S

WINDOW_MIN_BYTES: Final = 2 << 20
WINDOW_MAX_BYTES: Final = 32 << 20
REPLAY_GAP_MIN_NS: Final = 1_000_000
_DIGITS: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class FlowControl:
    """Deliveries stop while more bytes than the window are in flight. A flow control request is
    sent when half of the window is used; the answer releases the bytes sent before the request
    and doubles the window."""

    __slots__ = ("_prefix", "_requested_bytes", "_serial", "awaiting", "bytes_out", "window")

    def __init__(self, prefix: str) -> None:
        """`prefix` is `$JS.FC.<stream>.<consumer>.`"""
        self._prefix = prefix.encode()
        self._serial = 0
        self._requested_bytes = 0
        self.bytes_out = 0
        self.window = WINDOW_MIN_BYTES
        self.awaiting = b""  # reply subject of the unanswered request, or empty

    @property
    def blocked(self) -> bool:
        return self.bytes_out > self.window

    def sent(self, size: int) -> None:
        self.bytes_out += size

    def request(self, *, force: bool = False) -> bytes:
        """The reply subject of a request to send now, or empty. `force` sends one even if less
        than half of the window is used."""
        if self.awaiting or not (force or self.bytes_out > self.window // 2):
            return b""
        self._serial += 1
        self._requested_bytes = self.bytes_out
        self.awaiting = self._prefix + _four_digits(self._serial)
        return self.awaiting

    def answered(self, subject: bytes) -> bool:
        """A client answered. Only the latest request counts."""
        if not self.awaiting or subject != self.awaiting:
            return False
        self.bytes_out = max(self.bytes_out - self._requested_bytes, 0)
        self.window = min(self.window * 2, WINDOW_MAX_BYTES)
        self.awaiting = b""
        return True

    def restart(self) -> None:
        """There is a new subscriber: nothing is in flight, no request will be answered."""
        self.bytes_out = 0
        self.window = WINDOW_MIN_BYTES
        self.awaiting = b""


class RateLimit:
    """A token bucket as one number: the time at which everything sent so far is paid for."""

    __slots__ = ("_burst_ns", "_bytes_per_s", "_paid_at")

    def __init__(self, *, bits_per_s: int, burst_bytes: int) -> None:
        self._bytes_per_s = max(bits_per_s // 8, 1)
        self._burst_ns = burst_bytes * NS_PER_S // self._bytes_per_s
        self._paid_at = 0

    def ready_at(self) -> int:
        """The next message may be sent from this time on."""
        return self._paid_at - self._burst_ns

    def sent(self, size: int, now: int) -> None:
        self._paid_at = max(self._paid_at, now) + size * NS_PER_S // self._bytes_per_s


class ReplayPace:
    """Replay policy `original`: gaps over 1 ms between messages are kept, until the message that
    was the last one when delivery started. Policy `instant`: rows pass through unchanged."""

    def __init__(self, config: ConsumerConfig, store: MessageSource) -> None:
        original = config.replay_policy is ReplayPolicy.ORIGINAL
        self._until = store.last_seq if original else 0
        self._sent_at = 0
        self._message_time = 0
        self.ready_at = 0  # when the next message may be sent, 0 if now

    def take(self, cursor: Cursor, limit_rows: int, limit_bytes: int, now: int) -> RowGroups:
        """The next rows to deliver. A replay returns one row at a time, when it is due."""
        self.ready_at = 0
        if cursor.next_seq > self._until:
            return cursor.take(limit_rows=limit_rows, limit_bytes=limit_bytes)
        groups = cursor.take(limit_rows=1, limit_bytes=limit_bytes)
        if not groups:
            return groups
        rows, indices = groups[0]
        time_ns = rows.time(indices[0])
        gap = time_ns - self._message_time
        if self._sent_at and gap > REPLAY_GAP_MIN_NS and now < self._sent_at + gap:
            self.ready_at = self._sent_at + gap
            return []
        self._sent_at, self._message_time = now, time_ns
        return groups


def _four_digits(number: int) -> bytes:
    text = bytearray(4)
    for i in range(3, -1, -1):
        number, digit = divmod(number, len(_DIGITS))
        text[i] = _DIGITS[digit]
    return bytes(text)
