"""One Raft group as a pure, deterministic state machine: messages and ticks in, Ready out.

Owns: term, vote, role, commit and applied index of one member, and what it must say to others.
May not touch: disk, network, clock, dice (`draw` is injected), logging.
Spec: Raft figure 2; thesis 3.10 (transfer), 6.2 (check-quorum), 9.6 (pre-vote), 10.2.1 (disk in
parallel with the network). Departures from the paper: DIVERGENCE.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from raft.leading import COMMIT_NOTICE, Leading
from raft.log import RaftLog
from raft.member import Member
from raft.messages import Entry, EntryKind, Message, MessageKind
from raft.ready import CoreConfig, Ready, Status
from raft.replica import Replica
from raft.types import (
    HardState,
    Index,
    InvariantViolation,
    NodeId,
    NotLeader,
    RaftError,
    Role,
    SnapshotMeta,
    Term,
)

__all__ = ["CoreConfig", "RaftCore", "Ready", "Status"]


class RaftCore(Member):
    """One member of one group.

    Inputs never return outputs: after any of them, ask has_ready() and take ready().
    Readable: node, term, vote, role, leader, commit, applied_index, last_index, log, status()."""

    __slots__ = (
        "_beat",
        "_bug_append_before_flush",
        "_bug_commit_earlier_term",
        "_hard_commit",
        "_hard_term",
        "_hard_vote",
        "_number",
        "_replica",
        "_snapshot_due",
        "_told_leader",
        "_told_role",
    )

    def __init__(
        self,
        *,
        node: NodeId,
        voters: Sequence[NodeId],
        log: RaftLog,
        hard_state: HardState,
        config: CoreConfig,
        draw: Callable[[int, int], int],
        learners: Sequence[NodeId] = (),
        applied: Index | None = None,
    ) -> None:
        """`draw(low, high)` gives low <= n < high. `applied` is where the machine stands: entries
        up to there are not handed out again. The log must reach at least that far."""
        super().__init__(
            node=node,
            voters=voters,
            learners=learners,
            log=log,
            hard_state=hard_state,
            config=config,
            draw=draw,
        )
        self._replica = Replica(log, commit=hard_state.commit, applied=applied)
        self._snapshot_due = False
        self._number = 0
        self._beat = 0  # ticks since the last heartbeat we sent as leader
        self._hard_term, self._hard_vote = hard_state.term, hard_state.vote
        self._hard_commit = self._replica.commit
        self._told_leader: NodeId | None = None
        self._told_role = self.role
        self._bug_append_before_flush = "append_before_flush" in config.bugs
        self._bug_commit_earlier_term = "commit_earlier_term" in config.bugs

    @property
    def last_index(self) -> Index:
        return self.log.last_index

    @property
    def commit(self) -> Index:
        return self._replica.commit

    @property
    def applied_index(self) -> Index:
        return self._replica.applied

    # -- inputs

    def tick(self) -> None:
        """One unit of time has passed."""
        leading = self._leading
        self._elapsed += 1
        if leading is not None:
            self._tick_leader(leading)
        elif self._elapsed >= self._timeout:
            self._election_due()

    def step(self, message: Message) -> None:
        """A message of a peer. Late, repeated and reordered ones are harmless."""
        if message.term != self.term and not self._settle_term(message):
            return
        self._on_message[message.kind](self, message)

    def propose(self, data: bytes) -> Index:
        """Append to the leader's log. The entry is committed when Ready.committed shows this
        index with the present term; shown with another term, it was lost.
        Raises NotLeader (definite) here and during a leadership transfer."""
        leading = self._leading
        if leading is None:
            raise NotLeader(self.leader)
        if leading.transfer_to is not None:
            raise NotLeader(None)
        log = self.log
        index = Index(log.last_index + 1)
        log.append(Entry(index, self.term, data))
        leading.due = True
        return index

    def transfer_leader(self, to: NodeId) -> None:
        """Hand leadership to a voter, once its log is level with ours. Proposals are refused
        until it is done or an election timeout has passed."""
        leading = self._leading
        if leading is None:
            raise NotLeader(self.leader)
        if to not in self._voters:
            raise RaftError(f"cannot transfer leadership to {to}: not a voter of this group")
        if to != self.node:
            leading.transfer(to)

    def persisted(self, number: int, *, term: Term) -> None:
        """The writes of Ready `number`, made in `term`, and of all before it are flushed."""
        log = self.log
        before = log.persisted
        if not self._replica.flushed(number, term=term, current_term=self.term):
            return
        if self.role is Role.CANDIDATE:
            self._count_vote(self.node, granted=True)  # ours counts once it is on disk
        if log.persisted > before:
            if self._leading is not None:
                self._try_commit(self._leading)
            log.release(self._replica.handed)

    def applied(self, index: Index) -> None:
        """The machine has applied everything up to index."""
        self._replica.mark_applied(index)

    def snapshot_installed(self, index: Index, term: Term) -> None:
        """Machine and stored log now start at this snapshot, durably."""
        self._snapshot_due = False
        self._replica.restart_at(SnapshotMeta(index, term))
        if self.leader is not None and self.leader != self.node:
            self._accept_append(self.leader, index)

    def report_unreachable(self, node: NodeId) -> None:
        """Messages to this node were lost: find out again where its log stands."""
        if self._leading is not None:
            self._leading.unreachable(node)

    def report_snapshot(self, node: NodeId, ok: bool) -> None:  # noqa: FBT001 - fixed interface
        """The stream asked for by Ready.snapshot_to ended, well or not. Must always be told."""
        if self._leading is not None:
            self._leading.snapshot_sent(node, ok=ok)

    # -- outputs

    def has_ready(self) -> bool:
        log = self.log
        outbox = self._outbox
        leading = self._leading
        return (
            log.written != log.last_index
            or bool(outbox.now)
            or bool(outbox.after_persist)
            or (leading is not None and (leading.due or bool(leading.snapshot_to)))
            or self._replica.has_committed
            or self.role is not self._told_role
            or self.leader != self._told_leader
            or self.term != self._hard_term
            or self.vote != self._hard_vote
            or self._snapshot_due
        )

    def ready(self) -> Ready:
        """Everything to do since the last Ready; see Ready for the order."""
        leading = self._leading
        snapshot_to: list[NodeId] = []
        if leading is not None:
            if leading.due:
                leading.send_due(self.commit)
            if leading.snapshot_to:
                snapshot_to, leading.snapshot_to = leading.snapshot_to, []
        log = self.log
        outbox = self._outbox
        messages, outbox.now = outbox.now, []
        promises, outbox.after_persist = outbox.after_persist, []
        entries = log.take_unwritten()
        hard_state = self._take_hard_state(with_entries=bool(entries))
        self._number += 1
        if entries or hard_state is not None:
            self._replica.wrote(self._number, self.term)
        elif promises and not self._replica.has_outstanding_writes:
            messages += promises  # everything they promise is on disk already
            promises = []
        snapshot = self._replica.installing if self._snapshot_due else None
        self._snapshot_due = False
        self._told_role, self._told_leader = self.role, self.leader
        return Ready(
            self._number,
            self.term,
            hard_state,
            entries,
            messages,
            promises,
            self._replica.take_committed(self._config.max_committed_bytes),
            snapshot,
            snapshot_to,
            self.leader,
            self.role,
        )

    def status(self) -> Status:
        leading = self._leading
        return Status(
            node=self.node,
            role=self.role,
            term=self.term,
            vote=self.vote,
            leader=self.leader,
            commit=self.commit,
            applied=self.applied_index,
            first_index=self.log.first_index,
            last_index=self.log.last_index,
            persisted_index=self.log.persisted,
            transfer_to=leading.transfer_to if leading else None,
            voters=self._voters,
            learners=self._learners,
            peers=leading.status() if leading else (),
        )

    def _take_hard_state(self, *, with_entries: bool) -> HardState | None:
        """Term and vote whenever they changed; the commit index only rides along, since a
        write of its own would cost a flush and only save work after a restart."""
        changed = self.term != self._hard_term or self.vote != self._hard_vote
        if not changed and not (with_entries and self.commit != self._hard_commit):
            return None
        self._hard_term, self._hard_vote, self._hard_commit = self.term, self.vote, self.commit
        return HardState(self.term, self.vote, self.commit)

    # -- the leader's role

    @property
    def _may_campaign(self) -> bool:
        """Not as leader or passive member, nor with a log that is about to be replaced."""
        return self._leading is None and not self._passive and self._replica.installing is None

    def _become_leader(self) -> None:
        self.role = Role.LEADER
        self.leader = self.node
        self._ballot = None
        self._elapsed = self._beat = 0
        self._leading = Leading(
            node=self.node,
            term=self.term,
            voters=self._voters,
            learners=self._learners,
            log=self.log,
            config=self._config,
            outbox=self._outbox,
        )
        # Entries of earlier terms are committed through this one (section 5.4.2).
        index = Index(self.log.last_index + 1)
        self.log.append(Entry(index, self.term, b"", EntryKind.NOOP))

    def _tick_leader(self, leading: Leading) -> None:
        self._beat += 1
        if self._beat >= self._config.heartbeat_ticks:
            self._beat = 0
            leading.heartbeat(self.commit)
        if leading.transfer_to is not None:
            leading.tick_transfer()
        if self._elapsed >= self._config.election_ticks:
            self._elapsed = 0
            if self._config.check_quorum and not leading.heard_from_majority():
                self._become_follower(self.term, None)

    # -- the follower's log

    def _follow(self, leader: NodeId) -> None:
        if self._leading is not None:
            raise InvariantViolation(f"two leaders in term {self.term}: {leader} and ourselves")
        if self.leader != leader or self._ballot is not None:
            self._become_follower(self.term, leader)
        self._elapsed = 0

    def _on_append(self, message: Message) -> None:
        self._follow(message.sender)
        replica = self._replica
        if replica.installing is not None:
            return  # this log is about to be replaced
        agreed = replica.offer(message.index, message.log_term, message.entries)
        if agreed is None:
            self._refuse_append(message)
            return
        replica.commit_to(min(message.commit, agreed))
        self._accept_append(message.sender, agreed)

    def _accept_append(self, to: NodeId, index: Index) -> None:
        """Promise that our log up to index is the leader's and on disk."""
        outbox = self._outbox
        box = outbox.now if self._bug_append_before_flush else outbox.after_persist
        box.append(Message(MessageKind.APPEND_REPLY, self.node, to, self.term, index=index))

    def _refuse_append(self, message: Message) -> None:
        """Say where we might agree. No promise, so it need not wait for the disk."""
        start = min(message.index, self.log.last_index)
        hint, hint_term = self.log.back_off(start, message.log_term, floor=self.commit)
        self._outbox.now.append(
            Message(
                MessageKind.APPEND_REPLY,
                self.node,
                message.sender,
                self.term,
                index=message.index,
                reject=True,
                hint_index=hint,
                hint_term=hint_term,
            )
        )

    def _on_heartbeat(self, message: Message) -> None:
        self._follow(message.sender)
        if self._replica.installing is None:
            self._replica.commit_to(message.commit)
        if message.context != COMMIT_NOTICE:
            self._answer(message, MessageKind.HEARTBEAT_REPLY, context=message.context)

    def _on_snapshot(self, message: Message) -> None:
        """All chunks of a snapshot are here. Ready.snapshot asks for it unless our log already
        holds its position: then the log is worth more than the snapshot (section 7)."""
        self._follow(message.sender)
        if self._replica.installing is not None:
            return
        if message.index <= self.commit:
            self._accept_append(message.sender, self.commit)
        elif self.log.term(message.index) == message.log_term:
            self._replica.commit_to(message.index)
            self._accept_append(message.sender, message.index)
        else:
            self._replica.installing = SnapshotMeta(message.index, message.log_term)
            self._snapshot_due = True

    # -- the leader's view

    def _on_append_reply(self, message: Message) -> None:
        leading = self._leading
        if leading is not None and leading.append_answered(message):
            self._try_commit(leading)

    def _on_heartbeat_reply(self, message: Message) -> None:
        if self._leading is not None:
            self._leading.heartbeat_answered(message, self.commit)

    def _try_commit(self, leading: Leading) -> None:
        """Commit by counting, entries of our own term only (section 5.4.2)."""
        index = leading.majority_match()
        if index > self.commit and (index >= leading.term_start or self._bug_commit_earlier_term):
            self._replica.commit = index
            leading.due = True  # an idle follower wants to know

    _on_message: ClassVar[dict[int, Callable[[RaftCore, Message], None]]] = {
        **Member._on_election,  # noqa: SLF001 - our own base
        MessageKind.APPEND: _on_append,
        MessageKind.APPEND_REPLY: _on_append_reply,
        MessageKind.HEARTBEAT: _on_heartbeat,
        MessageKind.HEARTBEAT_REPLY: _on_heartbeat_reply,
        MessageKind.SNAPSHOT: _on_snapshot,
    }
