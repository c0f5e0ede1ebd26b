"""A batch of changes to the logs of many groups, written together.

Owns: what is to be written, as values, and how a later change replaces an earlier one.
May not touch: files; raft/store/node_log.py turns a batch into records.
Spec: one write serves all groups that have new entries at the same moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from raft.core.messages import Entry
from raft.types import GroupId, HardState, SnapshotMeta


@dataclass(slots=True)
class LogBatch:
    """Changes of any groups. A crash keeps all of them, or all except some of the last entries.
    May be written again if it was refused."""

    entries: dict[GroupId, list[Entry]] = field(default_factory=dict)
    hard_states: dict[GroupId, HardState] = field(default_factory=dict)
    snapshots: dict[GroupId, SnapshotMeta] = field(default_factory=dict)
    cuts: dict[GroupId, SnapshotMeta] = field(default_factory=dict)
    installs: dict[GroupId, SnapshotMeta] = field(default_factory=dict)
    removed: set[GroupId] = field(default_factory=set)
    nbytes: int = 0  # of the entries put

    def __bool__(self) -> bool:
        return bool(
            self.entries
            or self.hard_states
            or self.snapshots
            or self.cuts
            or self.installs
            or self.removed
        )

    def put_entries(self, group: GroupId, entries: Sequence[Entry]) -> None:
        """Append, and drop everything at or above the first entry's index. The entries must be
        contiguous."""
        if not entries:
            return
        for entry in entries:
            self.nbytes += len(entry.data)
        known = self.entries.get(group)
        if known is None:
            self.entries[group] = list(entries)
            return
        del known[max(0, entries[0].index - known[0].index) :]
        known.extend(entries)

    def put_hard_state(self, group: GroupId, hard_state: HardState) -> None:
        self.hard_states[group] = hard_state

    def put_snapshot(self, group: GroupId, meta: SnapshotMeta) -> None:
        """Delete the whole log: it starts again after the snapshot. Entries of the same batch are
        written after it."""
        self.snapshots[group] = meta

    def put_installing(self, group: GroupId, meta: SnapshotMeta) -> None:
        """A machine's state is about to be replaced by this snapshot; put_snapshot follows."""
        self.installs[group] = meta

    def cut(self, group: GroupId, at: SnapshotMeta) -> None:
        """Delete the entries up to and including this one."""
        self.cuts[group] = at

    def remove(self, group: GroupId) -> None:
        """Delete the group, even if it is damaged."""
        self.removed.add(group)

    def forget(self, group: GroupId) -> None:
        """Drop what was put for this group."""
        for part in (self.entries, self.hard_states, self.snapshots, self.cuts, self.installs):
            part.pop(group, None)
