"""One group as the host holds it: core, log, machine, and where it stands with the disk.

Owns: the StateMachine seam, the per-group bookkeeping of the host, the errors of its callers.
May not touch: sockets, the database, tasks.
Spec: DESIGN sections 4 and 6."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from raft.core.messages import Entry
from raft.core.raft_core import RaftCore
from raft.core.ready import CoreStatus
from raft.host.read_barriers import Barriers
from raft.host.tick_pace import TickPace
from raft.store.group_log import GroupLog
from raft.types import GroupId, HardState, Index, NodeId, RaftError, Role, SnapshotMeta, Term

CURRENT_SECONDS = 0.02  # far below what a lease leaves to spare


@dataclass(frozen=True, slots=True)
class HostLimits:
    waiting_bytes_max: int = 64 << 20  # proposed and not applied, per group: then GroupBusy
    tail_bytes_max: int = 8 << 20  # log entries kept in memory per group for followers
    snapshot_streams_max: int = 4  # going out to one node at once; further ones wait
    snapshot_bytes_per_second: int = 128 << 20  # of all streams that go out
    entry_bytes_max: int = 64 << 20  # a larger one is refused: EntryTooLarge


class StateMachine(Protocol):
    """What a group replicates. All calls come from the loop, one at a time."""

    def apply(self, entries: Sequence[Entry]) -> None:
        """Committed entries in index order, each exactly once between restarts. Entries of kind
        NOOP and CONFIG are among them: they only move the index (and tell the members). An
        exception stops the group here."""

    def leader_changed(self, *, leader: NodeId | None, term: Term, ours: bool) -> None: ...

    def snapshot(self) -> tuple[Index, Iterable[bytes]]:
        """The applied index and the state at it. The chunks are drawn one by one while apply()
        goes on, so they must show the state of that index; each fits into a frame."""

    def restore(self, meta: SnapshotMeta, chunks: Sequence[bytes]) -> Awaitable[None] | None:
        """Replace the state. `chunks` reads from a file as it is indexed or iterated. The state
        may be written without the log: the host flushes it. Nothing is applied meanwhile."""

    def durable_index(self) -> Index:
        """State up to here survives a crash, so the log may be cut below."""


@dataclass(slots=True)
class Arrived:
    """A snapshot whose chunks have all been received."""

    meta: SnapshotMeta
    chunks: Sequence[bytes]
    accept: Callable[[], None]  # tells the sender that all is well, and lets the chunks go
    refuse: Callable[[], None]  # tells it to try again, and lets the chunks go


class UnknownGroup(RaftError):
    """The group is not on this node."""


@dataclass(eq=False)
class GroupBusy(RaftError):
    """Definite: not appended, because too much waits to be committed."""

    group: GroupId
    waiting_bytes: int

    def __str__(self) -> str:
        return f"group {self.group} has {self.waiting_bytes} bytes waiting to be committed"


@dataclass(eq=False)
class GroupStopped(RaftError):
    """Definite: not appended; the group does not work on this node any more."""

    group: GroupId
    reason: str

    def __str__(self) -> str:
        return f"group {self.group} is stopped on this node: {self.reason}"


@dataclass(eq=False)
class EntryTooLarge(RaftError):
    """Definite: not appended."""

    size: int
    limit: int

    def __str__(self) -> str:
        return f"an entry of {self.size} bytes, at most {self.limit} are allowed"


@dataclass(frozen=True, slots=True)
class GroupStatus:
    group: GroupId
    core: CoreStatus
    stopped: str | None  # why, if it is
    log_bytes: int
    waiting_bytes: int
    installing: bool


class Group:
    """Mutable, and the host's alone."""

    __slots__ = (
        "_current_until",
        "arrived",
        "barriers",
        "core",
        "erase_upto",
        "id",
        "idle_at",
        "idle_ticks",
        "installing",
        "log",
        "machine",
        "persistent",
        "promised",
        "relaxed",
        "sampled",
        "stopped",
        "told",
        "unflushed",
        "waiting_bytes",
    )

    def __init__(
        self,
        group: GroupId,
        *,
        core: RaftCore,
        log: GroupLog,
        machine: StateMachine,
        persistent: bool,
    ) -> None:
        self.id = group
        self.core = core
        self.log = log
        self.machine = machine
        self.persistent = persistent
        self.relaxed = False  # its entries need not be flushed before they are promised
        self.promised: HardState | None = None  # last written, if relaxed or not persistent
        self.stopped: str | None = None
        self.installing = False
        self.arrived: Arrived | None = None  # a whole snapshot that the core was told of
        # Entries up to here hold what must be forgotten: cut as soon as the state is durable.
        # The one field that others set.
        self.erase_upto = Index(0)
        self.waiting_bytes = 0  # proposed by us and not yet applied
        self.unflushed = 0  # Readies whose promises wait for a flush
        self.idle_at = Index(0)  # the log's end when it last grew, as the ticker saw it
        self.idle_ticks = 0
        self.sampled: tuple[Index, float] | None = None  # a proposal whose latency is measured
        self.barriers: Barriers | None = None
        self.told: tuple[NodeId | None, Term, bool] = (None, Term(0), False)
        self._current_until = 0.0  # for so long the answer to reads_are_current is remembered

    def reads_are_current(self, pace: TickPace, there: Container[NodeId]) -> bool:
        """Whether our machine shows all that is committed: nobody else can have been elected, by
        our lease; while the group sleeps, because a majority is there and would have told us.
        Never after a pause of this process. Asked per read, so it is remembered for a moment."""
        core, now = self.core, time.monotonic()
        if core.role is not Role.LEADER:
            return False
        if now >= self._current_until:
            alone = core.keeps_quorum(())
            if not alone and not (
                pace.keeps_time(now)
                and core.keeps_quorum(there)
                and (core.asleep or core.lease_holds())
            ):
                return False
            self._current_until = now + CURRENT_SECONDS
        return True

    def admits(self, sender: NodeId, term: Term) -> bool:
        """Whether to listen to this node. A leader knows the members; others may be behind and
        must listen to whoever may be a member by now (thesis 4.1)."""
        core = self.core
        if core.role is not Role.LEADER or term > core.term:
            return True
        return sender in core.members.everyone()

    def status(self) -> GroupStatus:
        return GroupStatus(
            self.id,
            self.core.status(),
            self.stopped,
            self.log.nbytes,
            self.waiting_bytes,
            self.installing,
        )
