"""What a host can tell about itself, as frozen snapshots.

Owns: HostStatistics, HostMetrics, the latency histogram.
May not touch: groups, the store; watch.py fills these in.
Spec: DESIGN section 6 (a loop that lags is measured and reported)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from raft.types import GroupId, NodeId, Term

_UNIT_SECONDS: Final = 0.0001
_BUCKETS: Final = 18  # bounds double from 0.1 ms to about 13 s; the last has none


@dataclass(frozen=True, slots=True)
class Latency:
    """`counts[i]` observations took less than 0.1 ms * 2**i, and no bucket before counts them."""

    count: int
    seconds_total: float
    seconds_max: float
    counts: tuple[int, ...]

    def quantile(self, share: float) -> float:
        """An upper bound, in seconds, of what this share of the observations took."""
        wanted, seen = share * self.count, 0
        for position, count in enumerate(self.counts[:-1]):
            seen += count
            if seen >= wanted:
                return min(self.seconds_max, _UNIT_SECONDS * float(2**position))
        return self.seconds_max


class Histogram:
    """Growing counts; a snapshot is cheap."""

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


@dataclass(frozen=True, slots=True)
class HostStatistics:
    groups: int
    leading: int
    stopped: dict[GroupId, str]
    healthy: bool
    failure: str | None
    rounds: int
    flushes: int
    written_bytes: int
    applied_entries: int
    refused_writes: int
    late_ticks: int
    loop_lag_seconds_last: float
    loop_lag_seconds_max: float
    recoveries: int  # of the store after the disk had failed
    snapshots_sent: int
    snapshots_resumed: int  # times that a stream went on after a break
    snapshots_installed: int
    awake: int  # groups that get ticks; the others sleep
    recovering: int  # members that lost their log and have not caught up
    waiting_groups: int  # have something to do in the next round
    waiting_batches: int  # stand before the disk
    waiting_promises: int  # wait for a flush
    waiting_bytes: int  # proposed and not applied
    refused_messages: int  # of nodes that are no members of the group
    stray_messages: int  # for groups that are not here
    refused_entries: int  # larger than the limit
    flush_latency: Latency
    commit_latency: Latency  # from proposal to apply, one proposal at a time per group


@dataclass(frozen=True, slots=True)
class HostMetrics:
    """HostStatistics, and term and leader of every group."""

    statistics: HostStatistics
    terms: dict[GroupId, Term]
    leaders: dict[GroupId, NodeId | None]
