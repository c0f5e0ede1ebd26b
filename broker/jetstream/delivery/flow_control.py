"""How fast a push consumer may send: the flow control window and the rate limit.

Owns: bytes on their way and the pending flow control request; the virtual clock of the rate.
May not touch: messages, sockets; sizes and times are arguments.
Spec: JetStream push consumers: flow control (window 2 MiB, doubling to 32 MiB), rate_limit_bps."""

from __future__ import annotations

from typing import Final

WINDOW_MIN_BYTES: Final = 2 << 20
WINDOW_MAX_BYTES: Final = 32 << 20
NS_PER_S: Final = 1_000_000_000
_DIGITS: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class FlowControl:
    """Deliveries stop above the window. A request goes out when half of it is used; its answer
    gives back the bytes sent until then and doubles the window."""

    __slots__ = ("_asked_bytes", "_prefix", "_serial", "awaiting", "bytes_out", "window")

    def __init__(self, prefix: str) -> None:
        """`prefix` is `$JS.FC.<stream>.<consumer>.`"""
        self._prefix = prefix.encode()
        self._serial = 0
        self._asked_bytes = 0
        self.bytes_out = 0
        self.window = WINDOW_MIN_BYTES
        self.awaiting = b""  # reply subject of the unanswered request, or empty

    @property
    def blocked(self) -> bool:
        return self.bytes_out > self.window

    def sent(self, size: int) -> None:
        self.bytes_out += size

    def ask(self, *, wanted: bool = False) -> bytes:
        """The reply subject of a request to send now, or empty. `wanted`: the answer is needed,
        whatever the bytes say."""
        if self.awaiting or not (wanted or self.bytes_out > self.window // 2):
            return b""
        self._serial += 1
        self._asked_bytes = self.bytes_out
        self.awaiting = self._prefix + _four_digits(self._serial)
        return self.awaiting

    def answered(self, subject: bytes) -> bool:
        """A client answered. Only the latest request counts."""
        if not self.awaiting or subject != self.awaiting:
            return False
        self.bytes_out = max(self.bytes_out - self._asked_bytes, 0)
        self.window = min(self.window * 2, WINDOW_MAX_BYTES)
        self.awaiting = b""
        return True

    def restart(self) -> None:
        """The subscriber is another one: nothing is on its way, nothing will be answered."""
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
        """From this time on a message may go."""
        return self._paid_at - self._burst_ns

    def sent(self, size: int, now: int) -> None:
        self._paid_at = max(self._paid_at, now) + size * NS_PER_S // self._bytes_per_s


def _four_digits(number: int) -> bytes:
    text = bytearray(4)
    for i in range(3, -1, -1):
        number, digit = divmod(number, len(_DIGITS))
        text[i] = _DIGITS[digit]
    return bytes(text)
