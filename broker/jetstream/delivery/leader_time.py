"""Time at the leader of a stream: a steady clock for waits, and its offset to cluster time.

Owns: `now`, by which delivery measures every wait, and its offset to cluster time.
May not touch: clocks; it is given two of them.
Spec: docs/decisions/0020-cluster-time.md. Cluster time is corrected, and may jump when a leader
learns it; `now` only measures elapsed time. Both start at the same value."""

from __future__ import annotations

from collections.abc import Callable


class LeaderTime:
    __slots__ = ("_ahead_ns", "_cluster_ns", "_start_ns", "_steady_ns")

    def __init__(self, *, steady_ns: Callable[[], int], cluster_ns: Callable[[], int]) -> None:
        """`steady_ns` is never adjusted and never stops; `cluster_ns` is cluster time."""
        self._steady_ns = steady_ns
        self._cluster_ns = cluster_ns
        self._start_ns = cluster_ns() - steady_ns()
        self._ahead_ns = 0  # the time of the cluster minus `now`

    def now(self) -> int:
        now = self._steady_ns() + self._start_ns
        self._ahead_ns = self._cluster_ns() - now
        return now

    def to_cluster(self, at: int) -> int:
        """Cluster time at `at`, as of the last call of `now`: for times that are replicated, shown,
        or compared with a date."""
        return at + self._ahead_ns

    def from_cluster(self, time_ns: int) -> int:
        """The value of `now` at that cluster time."""
        return time_ns - self._ahead_ns
