"""inactive_threshold: when an unused consumer is deleted.

Owns: the inactivity deadline of one consumer, on its leader.
May not touch: the deletion itself; the engine proposes it.
Spec: JetStream consumer configuration, inactive_threshold (ephemeral consumers, 5 s by default)."""

from __future__ import annotations

from typing import Final
from zlib import crc32

from broker.jetstream.config.consumer_rules import INACTIVE_THRESHOLD_DEFAULT_NS

_JITTER_MIN_NS: Final = 100_000_000
_JITTER_SPAN_NS: Final = 900_000_000


class Inactivity:
    """Push: runs while there is no subscriber. Pull: since the last request, delivery or ack."""

    __slots__ = ("_jitter_ns", "_push", "_since", "_threshold_ns")

    def __init__(self, name: str, *, threshold_ns: int, push: bool, now: int) -> None:
        self._push = push
        self._threshold_ns = threshold_ns
        # Jitter, so that many consumers created together are not deleted together. It is derived
        # from the name instead of drawn, to keep this deterministic.
        spread = crc32(name.encode()) % _JITTER_SPAN_NS
        exact = push and threshold_ns != INACTIVE_THRESHOLD_DEFAULT_NS
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

    def deadline(self, *, extended_ns: int = 0) -> int | None:
        """None while the consumer is in use or has no threshold. Pending acks extend the life of
        a pull consumer by its ack wait (`extended_ns`)."""
        if self._threshold_ns <= 0 or self._since is None:
            return None
        return self._since + self._threshold_ns + self._jitter_ns + extended_ns
