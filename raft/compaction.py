"""Where the log of a group may be cut.

Owns: one decision, as a pure function.
May not touch: the store, the core.
Spec: Raft section 7. The log is needed above what the machine has made durable, and a while
longer for followers: one that is a little behind is cheaper to serve from the log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from raft.types import Index


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    keep_entries: int = 1000
    keep_bytes: int = 64 << 20  # fewer entries are kept if these are more than this
    lag_bytes_max: int = 512 << 20  # a follower further behind than this gets a snapshot
    step_entries: int = 256  # a cut smaller than both steps is put off
    step_bytes: int = 8 << 20
    every_ticks: int = 20


def cut_point(
    policy: CompactionPolicy,
    *,
    first: Index,
    last: Index,
    durable: Index,
    average_bytes: int,
    needed: Iterable[Index],
) -> Index | None:
    """The index up to which the log goes away, None to leave it.

    `needed`: indices after which connected followers and snapshots under way will read on."""
    kept = min(policy.keep_entries, max(1, policy.keep_bytes // average_bytes))
    cut = durable - kept
    for match in needed:
        if match < cut and (last - match) * average_bytes <= policy.lag_bytes_max:
            cut = match
    dropped = cut - first + 1
    if dropped <= 0:
        return None
    if dropped < policy.step_entries and dropped * average_bytes < policy.step_bytes:
        return None
    return Index(cut)
