"""Log compaction: up to where the log of a group may be cut, and cutting it.

Owns: one decision, as a pure function (`cut_point`), the write that carries it out for all groups,
and when the database reclaims the space of deleted values.
May not touch: the core, the machine's state.
Spec: Raft section 7. Entries above the machine's durable index must be kept, and some before it are
kept for followers: one that is a little behind is cheaper to serve from the log than by a
snapshot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from raft.host.group import Group
from raft.store.log_store import LogStore
from raft.store.records import StoreBusy
from raft.store.write_batch import LogBatch
from raft.transport.transport import Transport
from raft.types import GroupId, Index, Role, SnapshotMeta, Term

_SLEEPING_AT_ONCE: Final = 256  # sleeping groups checked in one run


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    keep_entries: int = 1000
    keep_bytes: int = 64 << 20  # fewer entries are kept if they are larger than this together
    keep_bytes_in_memory: int = 8 << 20  # the same for logs that are in memory only
    lag_bytes_max: int = 512 << 20  # a follower further behind than this gets a snapshot
    step_entries: int = 256  # a cut smaller than both steps is postponed
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
    """The index up to which the log is cut, None to leave it.

    `needed`: indices after which connected followers and running snapshots will read the log."""
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


class Compactor:
    def __init__(
        self,
        policy: CompactionPolicy,
        *,
        store: LogStore,
        transport: Transport,
        indices_needed: Callable[[Group], list[Index]],
        group_failed: Callable[[Group, Exception], None],
        store_failed: Callable[[BaseException], None],
    ) -> None:
        """`indices_needed` returns the indices of snapshots being sent: their receivers need the
        log after them."""
        self.policy = policy
        self._store = store
        self._transport = transport
        self._indices_needed = indices_needed
        self._group_failed = group_failed
        self._store_failed = store_failed
        self._reclaiming: asyncio.Future[None] | None = None
        self._position = 0  # of the walk over sleeping groups

    def choose(
        self, groups: Mapping[GroupId, Group], awake: Mapping[GroupId, Group]
    ) -> list[Group]:
        """All groups that are awake, and a few of the sleeping ones, round-robin: their state may
        have become durable since they fell asleep."""
        if len(awake) == len(groups):
            return list(awake.values())
        start = self._position if self._position < len(groups) else 0
        self._position = start + _SLEEPING_AT_ONCE
        sleeping = islice(groups.values(), start, self._position)
        return [*awake.values(), *(group for group in sleeping if group.id not in awake)]

    def run(self, groups: Iterable[Group]) -> None:
        """Cut every log that may be cut, in one write without a flush. Raises StoreFailed."""
        batch = LogBatch()
        for group in groups:
            if group.stopped is not None or group.installing:
                continue
            try:
                cut = self._cut_point(group)
            except Exception as error:  # noqa: BLE001 - stops this group
                self._group_failed(group, error)
                continue
            if cut is None:
                continue
            if group.persistent:
                self._store.compact(batch, group.id, cut)
            else:
                log = group.log
                log.compacted(SnapshotMeta(cut, log.term(cut) or Term(0), log.members_at(cut)))
        if batch:
            try:
                self._store.write(batch)
            except StoreBusy:
                return  # try again the next time

    def reclaim(self) -> None:
        """If much of the database is garbage, start to reclaim the space in the background."""
        if self._reclaiming is None and self._store.is_wasteful():
            loop = asyncio.get_running_loop()
            self._reclaiming = loop.run_in_executor(None, self._store.reclaim)
            self._reclaiming.add_done_callback(self._reclaimed)

    def _reclaimed(self, ended: asyncio.Future[None]) -> None:
        self._reclaiming = None
        error = ended.exception()
        if error is not None:
            self._store_failed(error)

    def _cut_point(self, group: Group) -> Index | None:
        log, core = group.log, group.core
        needed = self._indices_needed(group)
        if core.role is Role.LEADER:
            peers = core.status().peers
            needed += [peer.match for peer in peers if self._transport.connected(peer.node)]
        policy = self.policy
        if group.persistent:
            goal = self._store.log_goal_bytes
            policy = replace(
                policy,
                keep_bytes=min(policy.keep_bytes, goal // 2),
                step_bytes=min(policy.step_bytes, goal // 8),
            )
        pressed = group.persistent and self._store.is_pressed(group.id)
        if pressed or group.erase_upto >= log.first_index():
            policy = replace(policy, keep_entries=0, step_entries=1)
        elif not group.persistent:
            policy = replace(policy, keep_bytes=policy.keep_bytes_in_memory)
        return cut_point(
            policy,
            first=log.first_index(),
            last=log.last_index(),
            durable=min(group.machine.durable_index(), core.applied_index),
            average_bytes=log.average_bytes,
            needed=needed,
        )
