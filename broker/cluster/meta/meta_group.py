"""The meta group on this node: the Raft state machine around the table of assignments.

Owns: changes of the assignment table, and the callers that wait for a change.
May not touch: streams; it reports assignments that were added, changed or removed.
Spec: docs/ARCHITECTURE.md, "Storage"."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from broker.cluster.meta.assignments import (
    FIRST_STREAM_GROUP,
    META_GROUP,
    Assignment,
    AssignmentTable,
    AssignStream,
    MetaCommand,
    MetaResult,
    MoveReplicas,
    NodeChange,
    ReconfigureStream,
    RecordMembers,
    RemoveStream,
    RenewStream,
    encode_command,
)
from broker.cluster.meta.feature_level import LevelRaised
from broker.cluster.meta.stored_table import StoredTable
from broker.cluster.proposals import Proposals
from broker.cluster.reached_index import ReachedIndex
from broker.jetstream.errors import JetStreamError
from raft import Entry, EntryKind, GroupId, Index, NodeId, SnapshotMeta, Term
from raft.host.host import Host
from raft.store.disk_space import Space
from raft.store.records import GroupRecord

NOTHING = Index(0)
NO_TERM = Term(0)


class StoredLog(Protocol):
    def last_index(self) -> Index: ...


class GivenUpLog(Protocol):
    @property
    def record(self) -> GroupRecord: ...


class DamagedLogs(Protocol):
    """The log store, as far as a damaged log is given up."""

    def give_up_log(self, group: GroupId, applied: Index) -> StoredLog: ...


@dataclass(slots=True)
class MetaGroup:
    """Implements raft.StateMachine."""

    assignments: AssignmentTable
    stored: StoredTable
    host: Host
    on_assigned: Callable[[Assignment], None]
    on_reconfigured: Callable[[Assignment], None]
    on_removed: Callable[[Assignment], None]
    on_leader: Callable[[NodeId | None], None]
    on_nodes: Callable[[], None]  # the table of nodes has changed
    on_written: Callable[[], None]  # requests a flush soon: changes are rare, a restart needs them
    on_flushed: Callable[[int], None]
    is_leader: bool = False
    _proposals: Proposals = field(default_factory=Proposals)
    _reached: ReachedIndex = field(default_factory=ReachedIndex)
    _flushed: Index = NOTHING
    _applied_term: Term = NO_TERM

    def load(self) -> None:
        """Load the record of an earlier run; the log replays what is newer."""
        self.stored.load()
        self._flushed = self.assignments.applied

    def give_up_log(self, store: DamagedLogs) -> None:
        """The log is damaged: keep the table as stored, if the rest of the log contains its
        position; otherwise start with an empty table. Raises DamagedLog if the promises of this
        node are unknown."""
        log = store.give_up_log(META_GROUP, self.assignments.applied)
        if log.last_index() != self.assignments.applied:
            self._begin_empty()

    def log_given_up(self, log: GivenUpLog) -> None:
        """The log was given up in an earlier run and is empty, but the matching empty table may not
        have been flushed: the loaded table is then ahead of the log and must be discarded. A table
        that is ahead because a snapshot was being installed is kept."""
        if log.record.installing.index != self.assignments.applied:
            self._begin_empty()

    def _begin_empty(self) -> None:
        self.assignments.load_dump(None)
        self._flushed = self.assignments.applied
        self.stored.write()

    @property
    def is_durable(self) -> bool:
        """Whether everything applied is on this node's disk and would survive a restart."""
        return self._flushed >= self.assignments.applied

    @property
    def knows_all(self) -> bool:
        """Whether this node leads the group and its table includes everything that earlier leaders
        have committed, so that decisions based on it are not outdated."""
        return self.is_leader and self._applied_term == self.host.status(META_GROUP).core.term

    async def propose(self, command: MetaCommand) -> MetaResult:
        """The result of the applied command. Raises NotLeader or LostLeadership."""
        space = Space.SHORT if isinstance(command, AssignStream) else Space.SCARCE
        term, index = self.host.propose(META_GROUP, encode_command(command), space=space)
        result = await self._proposals.add(term, index)
        assert isinstance(result, Assignment | NodeChange | LevelRaised | JetStreamError)
        return result

    async def applied_here(self, index: int, *, timeout_s: float) -> bool:
        """Wait until this node has applied the table up to this index. False: not in time."""
        if self.assignments.applied >= index:
            return True
        return await self._reached.wait(index, timeout_s=timeout_s)

    # -- raft.StateMachine ----------------------------------------------------------------------

    def apply(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if entry.kind is not EntryKind.NORMAL:
                self.assignments.advanced(entry.index)
                continue
            command, result = self.assignments.apply(entry.index, entry.data)
            self._report(entry.index, command, result)
            self._proposals.applied(entry.term, entry.index, result)
        self._proposals.passed(entries[-1].index)
        self._applied_term = entries[-1].term
        self._reached.reached(entries[-1].index)
        self.stored.write()
        self.on_written()

    def leader_changed(self, *, leader: NodeId | None, term: Term, ours: bool) -> None:
        self.is_leader = ours
        self.on_leader(leader)

    def snapshot(self) -> tuple[Index, Iterable[bytes]]:
        return self.assignments.applied, [self.assignments.dump()]

    def restore(self, meta: SnapshotMeta, chunks: Sequence[bytes]) -> None:
        before = {(a.account, a.name): a for a in self.assignments}
        self._proposals.cancel()  # whether the snapshot includes their entries is unknown
        self.assignments.load_dump(b"".join(chunks))
        self.on_nodes()  # first, because streams refer to nodes
        after = {(a.account, a.name): a for a in self.assignments}
        for place, old in before.items():
            new = after.get(place)
            if new is None or new.group != old.group:
                self.on_removed(old)
        for place, new in after.items():
            known = before.get(place)
            if known is None or known.group != new.group:
                self.on_assigned(new)
            elif known != new:
                self.on_reconfigured(new)
        self._reached.reached(self.assignments.applied)
        self.stored.write()

    def durable_index(self) -> Index:
        return self._flushed

    # -- checkpoints ----------------------------------------------------------------------------

    def written(self) -> Index:
        """The index that the next flush of the state column makes durable."""
        return self.assignments.applied

    def flushed(self, index: Index) -> None:
        self._flushed = index
        self.on_flushed(index)

    def close(self) -> None:
        self.is_leader = False
        self._proposals.cancel()

    def _report(self, index: Index, command: MetaCommand, result: MetaResult) -> None:
        if isinstance(result, NodeChange):
            self.on_nodes()
            for moved in result.moved:
                self.on_reconfigured(moved)
        if not isinstance(result, Assignment):
            return
        match command:
            case AssignStream():
                if result.group == FIRST_STREAM_GROUP + index:  # otherwise it existed already
                    self.on_assigned(result)
            case ReconfigureStream() | RecordMembers() | MoveReplicas():
                self.on_reconfigured(result)
            case RenewStream():
                if result.group == FIRST_STREAM_GROUP + index:
                    self.on_removed(msgspec.structs.replace(result, group=command.group))
                    self.on_assigned(result)
            case RemoveStream():
                self.on_removed(result)
