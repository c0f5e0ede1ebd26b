"""A histogram of latencies.

Owns: the buckets.
May not touch: clocks; durations are arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_UNIT_SECONDS: Final = 0.0001
_BUCKETS: Final = 18  # bounds double from 0.1 ms to about 13 s; the last bucket has none


@dataclass(frozen=True, slots=True)
class Latency:
    """`counts[i]` observations took less than 0.1 ms * 2**i; each is in one bucket only."""

    count: int
    seconds_total: float
    seconds_max: float
    counts: tuple[int, ...]

    @property
    def bounds(self) -> tuple[float, ...]:
        """The upper bounds of all buckets but the last, in seconds."""
        return tuple(_UNIT_SECONDS * float(2**position) for position in range(_BUCKETS - 1))

    def quantile(self, share: float) -> float:
        """An upper bound, in seconds, of what this share of the observations took."""
        wanted, seen = share * self.count, 0
        for position, count in enumerate(self.counts[:-1]):
            seen += count
            if seen >= wanted:
                return min(self.seconds_max, _UNIT_SECONDS * float(2**position))
        return self.seconds_max


class Histogram:
    """Counts that only grow; a snapshot is cheap."""

    __slots__ = ("_counts", "count", "seconds_max", "seconds_total")

    def __init__(self) -> None:
        self.count = 0
        self.seconds_total = self.seconds_max = 0.0
        self._counts = [0] * _BUCKETS

    def observe(self, seconds: float) -> None:
        self.count += 1
        self.seconds_total += seconds
        self.seconds_max = max(self.seconds_max, seconds)
        self._counts[min(int(seconds / _UNIT_SECONDS).bit_length(), _BUCKETS - 1)] += 1

    def snapshot(self) -> Latency:
        return Latency(self.count, self.seconds_total, self.seconds_max, tuple(self._counts))
