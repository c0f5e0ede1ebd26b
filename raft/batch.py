"""Changes of many groups' logs that are written together.

Owns: what is to be written, as values.
May not touch: the database; raft.store turns it into a write.
Spec: DESIGN section 4, step 5: one write for the entries of all groups of a moment."""

from __future__ import annotations

from dataclasses import dataclass, field

from raft.messages import Entry
from raft.types import GroupId, HardState, SnapshotMeta


@dataclass(slots=True)
class Batch:
    """Changes of any groups, written together or not at all. May be written again if refused."""

    entries: dict[GroupId, list[Entry]] = field(default_factory=dict)
    hard_states: dict[GroupId, HardState] = field(default_factory=dict)
    snapshots: dict[GroupId, SnapshotMeta] = field(default_factory=dict)
    cuts: dict[GroupId, SnapshotMeta] = field(default_factory=dict)
    installs: dict[GroupId, SnapshotMeta] = field(default_factory=dict)
    removed: set[GroupId] = field(default_factory=set)
    nbytes: int = 0  # of the entries put

    def __bool__(self) -> bool:
        return any(
            (
                self.entries,
                self.hard_states,
                self.snapshots,
                self.cuts,
                self.installs,
                self.removed,
            )
        )

    def forget(self, group: GroupId) -> None:
        """Leave out what was put for this group."""
        for part in (self.entries, self.hard_states, self.snapshots, self.cuts, self.installs):
            part.pop(group, None)
