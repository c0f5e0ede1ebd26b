"""One group as the host sees it: core, log, machine, and its bookkeeping of disk writes.

Owns: the StateMachine interface, the per-group bookkeeping of the host, the errors that callers of
the host may get.
May not touch: sockets, the database, tasks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from raft.core.messages import Entry
from raft.core.raft_core import RaftCore
from raft.core.ready import CoreStatus
from raft.host.reads import GroupReads
from raft.store.group_log import GroupLog
from raft.types import GroupId, HardState, Index, NodeId, RaftError, Role, SnapshotMeta, Term


@dataclass(frozen=True, slots=True)
class HostLimits:
    waiting_bytes_max: int = 64 << 20  # proposed and not applied, per group: then GroupBusy
    tail_bytes_max: int = 8 << 20  # log entries kept in memory per group for followers
    tails_bytes_max: int = 48 << 20  # the same of all groups together
    snapshot_transfers_max: int = 4  # to one node at once; further ones wait
    snapshot_bytes_per_second: int = 128 << 20  # of all outgoing transfers together
    entry_bytes_max: int = 64 << 20  # a larger one is refused: EntryTooLarge


class SnapshotUnavailable(Exception):
    """The machine cannot read its state now, and is handling that. The transfer is retried."""


class MachineDamaged(Exception):
    """The machine found damage in its stored state, and is handling that. The group stops."""


class StateMachine(Protocol):
    """What a group replicates. All calls come from the loop, one at a time."""

    def apply(self, entries: Sequence[Entry]) -> None:
        """Committed entries in index order, each exactly once between restarts. They include
        entries of kind NOOP and CONFIG, which only advance the index (and name the members). An
        exception stops the group on this node."""

    def leader_changed(self, *, leader: NodeId | None, term: Term, ours: bool) -> None: ...

    def snapshot(self) -> tuple[Index, Iterable[bytes]]:
        """The applied index and the state at that index. The chunks are taken one by one while
        apply() continues, so they must show the state at that index; each fits into a frame. Taking
        one may raise SnapshotUnavailable."""

    def restore(self, meta: SnapshotMeta, chunks: Sequence[bytes]) -> Awaitable[None] | None:
        """Replace the state. `chunks` reads from a file as it is indexed or iterated. The state
        may be written without the write-ahead log: the host flushes it. Nothing is applied
        meanwhile."""

    def durable_index(self) -> Index:
        """State up to here survives a crash, so the log may be cut below."""


Preparing = Iterator[asyncio.Future[Any] | None]


@runtime_checkable
class PreparingMachine(Protocol):
    """A machine with entries that take long to apply. Such an entry is prepared in steps, between
    other work, once all earlier entries are applied; the state does not change until the entry is
    applied. `apply` must also work without preparation."""

    def is_long(self, entry: Entry) -> bool:
        """Whether there may be something to prepare. Called for every entry."""

    def prepare(self, entry: Entry) -> Preparing:
        """In steps of about a millisecond. A future instead of None: nothing may be applied before
        it is done; `prepare` is called again then."""


@dataclass(slots=True)
class Arrived:
    """A snapshot whose chunks have all been received."""

    meta: SnapshotMeta
    chunks: Sequence[bytes]
    accept: Callable[[], None]  # tells the sender that it succeeded, and frees the chunks
    refuse: Callable[[], None]  # tells the sender to try again, and frees the chunks


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
    """Definite: not appended; the group has stopped working on this node."""

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
        return f"entry of {self.size} bytes is too large, the limit is {self.limit}"


@dataclass(frozen=True, slots=True)
class GroupStatus:
    group: GroupId
    core: CoreStatus
    stopped: str | None  # the reason, if it is stopped
    log_bytes: int
    waiting_bytes: int
    installing: bool


class Group:
    """Mutable, and used by the host only."""

    __slots__ = (
        "announced",
        "arrived",
        "backlog",
        "core",
        "deferred",
        "erase_upto",
        "id",
        "idle_at",
        "idle_ticks",
        "installing",
        "log",
        "machine",
        "persistent",
        "preparer",
        "preparing",
        "promised",
        "reads",
        "relaxed",
        "sampled",
        "stopped",
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
        self.preparer = machine if isinstance(machine, PreparingMachine) else None
        self.preparing: tuple[Entry, Preparing] | None = None  # first entry of the backlog
        self.persistent = persistent
        self.reads = GroupReads(core)
        self.relaxed = False  # its entries may be promised before they are flushed
        self.promised: HardState | None = None  # last written, if relaxed or not persistent
        self.stopped: str | None = None  # the reason, if it is stopped
        self.installing = False
        self.arrived: Arrived | None = None  # a whole snapshot that was offered to the core
        # Entries up to here hold data that must be erased: cut as soon as the state is durable.
        # The one field that the application sets.
        self.erase_upto = Index(0)
        # Committed, not applied yet. Bounded: by waiting_bytes_max for what is proposed here, and
        # for what a leader sends by that leader, which applies the same entries.
        self.backlog: deque[Entry] = deque()
        self.deferred = False  # the backlog waits for another turn of the loop
        self.waiting_bytes = 0  # proposed by us and not yet applied
        self.unflushed = 0  # Readies whose promises wait for a flush
        self.idle_at = Index(0)  # the log's last index when quiescence last saw it grow
        self.idle_ticks = 0
        self.sampled: tuple[Index, float] | None = None  # a proposal whose latency is measured
        # Leader, term and whether we lead, as last reported to the machine.
        self.announced: tuple[NodeId | None, Term, bool] = (None, Term(0), False)

    def admits(self, sender: NodeId, term: Term) -> bool:
        """Whether to accept messages of this node. A leader knows the members. Other members may
        be behind, and must accept messages of any node: it may be a member by now (thesis 4.1)."""
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
