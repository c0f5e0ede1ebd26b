"""When a consumer nobody uses should go.

Owns: the inactivity clock of one consumer, on its leader.
May not touch: the decision's effect; the engine proposes the deletion.
Spec: JetStream ephemeral life cycle: inactive_threshold, jitter for pull and the default value."""

from __future__ import annotations

from typing import Final
from zlib import crc32

DEFAULT_THRESHOLD_NS: Final = 5_000_000_000
RETRY_NS: Final = 5_000_000_000  # a deletion that was proposed and lost is proposed again
_JITTER_MIN_NS: Final = 100_000_000
_JITTER_SPAN_NS: Final = 900_000_000


class Inactivity:
    """Push: runs while there is no subscriber. Pull: since the last request, delivery or ack."""

    __slots__ = ("_jitter_ns", "_push", "_since", "_threshold_ns")

    def __init__(self, name: str, *, threshold_ns: int, push: bool, now: int) -> None:
        self._push = push
        self._threshold_ns = threshold_ns
        # Spread over names rather than drawn: many consumers made at once leave one by one.
        spread = crc32(name.encode()) % _JITTER_SPAN_NS
        exact = push and threshold_ns != DEFAULT_THRESHOLD_NS
        self._jitter_ns = 0 if exact else _JITTER_MIN_NS + spread
        self._since: int | None = now  # None: in use

    def used(self, now: int) -> None:
        """Activity of a pull consumer."""
        if not self._push:
            self._since = now

    def bound(self, *, bound: bool, now: int) -> None:
        """A push consumer gained or lost its subscriber."""
        if bound:
            self._since = None
        elif self._since is None:
            self._since = now

    def postpone(self, until: int) -> None:
        """Ask again at `until`, not before."""
        self._since = until - self._threshold_ns - self._jitter_ns

    def deadline(self, *, extended_ns: int = 0) -> int | None:
        """Outstanding acks extend the life of a pull consumer by their ack wait."""
        if self._threshold_ns <= 0 or self._since is None:
            return None
        return self._since + self._threshold_ns + self._jitter_ns + extended_ns
