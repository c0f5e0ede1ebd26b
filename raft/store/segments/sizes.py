"""How large the log and its segments may be, depending on the size of the state and the write rate.

Owns: the current sizes, between those of an empty log and the limits.
May not touch: files, the clock (ticks come from outside).
Spec: docs/decisions/0033-the-log-follows-what-is-stored.md. A busy log has large segments and keeps
freed ones for reuse, so that flushes write data and no metadata. An idle log takes a fifth of the
size of the state, in small segments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_MB: Final = 1 << 20
_SEGMENTS: Final = 6  # segments in a log of the goal's size
_LEAST_SHARE: Final = 8  # the goal of an empty log is 1/8 of the limit
_STORED_SHARE: Final = 5
_GROUP_BYTES: Final = 4 << 10  # size of a group's record and its last entries
_BUSY_TICKS: Final = 80  # what was written within about this time is kept for followers
_REST_TICKS: Final = 400  # time constant of the decay after a busy time


@dataclass(frozen=True, slots=True)
class SegmentSizes:
    first: int
    largest: int
    log_goal: int  # above this, the oldest segment is freed even if much of it is alive
    spare_max: int  # bytes of freed files that are kept for reuse
    rest: int = 4 * _MB  # size of a segment, and of all spare files, of an idle log


class SegmentSizing:
    def __init__(self, limits: SegmentSizes) -> None:
        self.limits = limits
        self._unnoted = 0  # bytes written since the last tick
        self._busy = 0  # bytes written recently
        self._held = 0  # the recent maximum of `_busy`, decaying slowly
        self.now = limits
        self.tick(stored_bytes=0, groups=0)

    def written(self, size: int) -> None:
        self._unnoted += size

    def tick(self, *, stored_bytes: int, groups: int) -> None:
        """Called at short, regular intervals."""
        self._busy += self._unnoted - self._busy // _BUSY_TICKS
        self._unnoted = 0
        self._held = max(self._busy, self._held - self._held // _REST_TICKS)
        limits = self.limits
        wanted = max(limits.log_goal // _LEAST_SHARE, stored_bytes // _STORED_SHARE, self._held)
        goal = min(limits.log_goal, wanted + groups * _GROUP_BYTES)
        segment = max(limits.rest, goal // _SEGMENTS // _MB * _MB)
        self.now = SegmentSizes(
            limits.first,
            min(limits.largest, segment),
            goal,
            min(limits.spare_max, max(limits.rest, self._held)),
            limits.rest,
        )
