"""Time at the leader of a stream: how long something has waited, and what time it is.

Owns: `now`, by which delivery measures every wait, and its distance from the cluster's time.
May not touch: clocks; it is given two of them.
Spec: docs/decisions/0020-cluster-time.md. The time of the cluster is corrected, and it may
step when a leader learns it; `now` only counts what passes. Both start at the same number."""

from __future__ import annotations

from collections.abc import Callable


class LeaderTime:
    __slots__ = ("_ahead_ns", "_cluster_ns", "_start_ns", "_steady_ns")

    def __init__(self, *, steady_ns: Callable[[], int], cluster_ns: Callable[[], int]) -> None:
        """`steady_ns` is never set and never stops; `cluster_ns` is the time of the cluster."""
        self._steady_ns = steady_ns
        self._cluster_ns = cluster_ns
        self._start_ns = cluster_ns() - steady_ns()
        self._ahead_ns = 0  # the time of the cluster minus `now`

    def now(self) -> int:
        now = self._steady_ns() + self._start_ns
        self._ahead_ns = self._cluster_ns() - now
        return now

    def to_cluster(self, at: int) -> int:
        """The time of the cluster at `at`, as of the last call of `now`: for what is replicated,
        shown, or compared with a date."""
        return at + self._ahead_ns

    def from_cluster(self, time_ns: int) -> int:
        """When it will be that time, in terms of `now`."""
        return time_ns - self._ahead_ns
