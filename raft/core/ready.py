"""Inputs and outputs of a RaftCore: its settings, its Ready and its status.

Owns: CoreConfig, Ready, ReadState, CoreStatus, PeerStatus, as plain values.
May not touch: I/O, clocks, random numbers.
Spec: the Ready contract is in the docstring of Ready."""

from __future__ import annotations

from dataclasses import dataclass, field

from raft.core.messages import Entry, Message
from raft.types import HardState, Index, NodeId, Role, SnapshotMeta, Term

_AS_BEGUN = Index(0)


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """Settings of one group. Times are ticks; the host decides how long a tick is."""

    election_ticks: int = 10  # each timeout is drawn from [election_ticks, 2 * election_ticks)
    heartbeat_ticks: int = 2
    max_inflight_batches: int = 64  # appends in flight to one peer
    max_append_bytes: int = 1 << 20  # entry bytes in one append; a single entry may be larger
    max_committed_bytes: int = 8 << 20  # entry bytes handed out in one Ready
    max_write_bytes: int = 4 << 20  # a leader's own entry bytes in one Ready, fair to other groups
    pre_vote: bool = True
    check_quorum: bool = True
    lease_ticks: int = 4  # a leader reads without asking for as long after a promised round

    @property
    def promise_ticks(self) -> int:
        """How long a member grants no vote after it promised a leader that it will not. Longer
        than the lease: the first tick may come at once, the last one early by a tick, and clock
        rates may differ by a tenth."""
        return self.lease_ticks + 3


@dataclass(frozen=True, slots=True)
class ReadState:
    """A read asked for by read_index(context) may be served once `index` is applied."""

    context: int
    index: Index


@dataclass(slots=True)
class Ready:
    """Everything one core wants done. The host does, in this order:

    1. `snapshot`: install it (machine, then log, durably), then snapshot_installed().
    2. Write `hard_state` and `entries` (cut the stored log at entries[0].index first).
    3. Send `messages` at once, and transfer a snapshot to each node in `snapshot_to`.
    4. When this write AND those of all earlier Readies are flushed: persisted(number,
       term=term), then send `after_persist`. Later Readies may be taken and written
       before that; persisted(n) covers all numbers up to n.
    5. Apply `committed` (any time from now on, in order; they are flushed here already),
       then applied(index).
    6. Serve each of `reads` when its index is applied. A read that is not confirmed when the
       node stops leading is never confirmed."""

    number: int
    term: Term  # the core's term when this was made; passed back to persisted()
    hard_state: HardState | None
    entries: list[Entry]
    messages: list[Message]
    after_persist: list[Message]
    committed: list[Entry]
    snapshot: SnapshotMeta | None
    snapshot_to: list[NodeId]
    leader: NodeId | None
    role: Role
    reads: list[ReadState] = field(default_factory=list)

    @property
    def must_flush(self) -> bool:
        """Whether the host must call persisted(): a write or a promise waits for the disk."""
        return bool(self.entries or self.after_persist) or self.hard_state is not None


@dataclass(frozen=True, slots=True)
class PeerStatus:
    node: NodeId
    state: str  # probe, replicate or snapshot
    match: Index
    next: Index
    active: bool  # heard from since the last quorum check
    inflight: int
    recovering: bool = False  # it has lost its log: it has no vote before it has caught up


@dataclass(frozen=True, slots=True)
class CoreStatus:
    """A frozen snapshot of one core's state."""

    node: NodeId
    role: Role
    term: Term
    vote: NodeId
    leader: NodeId | None
    commit: Index
    applied: Index
    first_index: Index
    last_index: Index
    persisted_index: Index
    transfer_to: NodeId | None
    voters: tuple[NodeId, ...]
    learners: tuple[NodeId, ...]
    outgoing: tuple[NodeId, ...] = ()  # the old voters, while a change is in its joint phase
    members_index: Index = _AS_BEGUN  # index of the CONFIG entry in use; 0: the initial members
    recovering: bool = False  # has lost its log and grants no votes until it has caught up
    asleep: bool = False
    peers: tuple[PeerStatus, ...] = field(default=())  # filled on the leader only
