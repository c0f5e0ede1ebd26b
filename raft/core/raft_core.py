"""One Raft group as a pure, deterministic state machine: messages and ticks in, Ready out.

Owns: term, vote, role, commit and applied index of one member, and what it must say to others.
May not touch: disk, network, clock, dice (`draw` is injected), logging.
Spec: Raft figure 2; thesis 3.10 (transfer), 4 (members), 6.2 (check-quorum), 6.4 (reads), 9.6
(pre-vote), 10.2.1 (disk in parallel with the network). Departures: DIVERGENCE.md."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import ClassVar

from raft.core.confchange import encode_members, first_step, last_step
from raft.core.follower import Follower
from raft.core.leader import COMMIT_NOTICE, SLEEP, LeaderState
from raft.core.log import RaftLog
from raft.core.messages import Entry, EntryKind, Message, MessageKind
from raft.core.ready import CoreConfig, CoreStatus, ReadState, Ready
from raft.types import (
    ChangeRefused,
    HardState,
    Index,
    Members,
    NodeId,
    NotLeader,
    RaftError,
    Role,
    Term,
)

__all__ = ["CoreConfig", "CoreStatus", "RaftCore", "Ready"]


class RaftCore(Follower):
    """One member of one group.

    Inputs never return outputs: after any of them, ask has_ready() and take ready().
    Readable: node, term, vote, role, leader, commit, applied_index, last_index, log, status()."""

    __slots__ = (
        "_beat",
        "_bug_commit_earlier_term",
        "_hard_commit",
        "_hard_lives",
        "_hard_term",
        "_hard_vote",
        "_number",
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
        up to there are not handed out again. The log must reach at least that far. `voters` and
        `learners` are those the group began with; what the log says of its members goes before.
        A member whose log is gone starts with hard_state.after_loss() and an empty one."""
        super().__init__(
            node=node,
            begun_with=Members(tuple(voters), tuple(learners)),
            log=log,
            hard_state=hard_state,
            config=config,
            draw=draw,
            applied=applied,
        )
        self._number = 0
        self._beat = 0  # ticks since the last heartbeat we sent as leader
        self._hard_term, self._hard_vote = hard_state.term, hard_state.vote
        self._hard_commit = self._replica.commit
        # A new life is on disk before anybody hears of it.
        self._hard_lives = -1 if self.recovering else hard_state.lives
        self._told_leader: NodeId | None = None
        self._told_role = self.role
        self._bug_commit_earlier_term = "commit_earlier_term" in config.bugs

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
        if self.asleep and not self._is_echo(message):
            self.wake(because_of=message.sender)
        if message.term != self.term and not self._settle_term(message):
            return
        self._on_message[message.kind](self, message)

    def _is_echo(self, message: Message) -> bool:
        """Whether a message is a late answer to what was said before the group went to sleep,
        or sends it there: such must not wake it, or slow links would keep it awake for ever."""
        kind = message.kind
        if kind == MessageKind.HEARTBEAT:
            return message.context == SLEEP
        if message.term > self.term:
            return False
        if kind in (MessageKind.VOTE_REPLY, MessageKind.PRE_VOTE_REPLY):
            return True
        if kind == MessageKind.HEARTBEAT_REPLY:
            return not message.reject and message.context not in (COMMIT_NOTICE, SLEEP)
        return kind == MessageKind.APPEND_REPLY and not message.reject

    def propose(self, data: bytes) -> Index:
        """Append to the leader's log. The entry is committed when Ready.committed shows this
        index with the present term; shown with another term, it was lost.
        Raises NotLeader (definite) here and during a leadership transfer."""
        leading = self._leading
        if leading is None:
            raise NotLeader(self.leader)
        if leading.transfer_to is not None:
            raise NotLeader(None)
        if self.asleep:  # the append wakes the others
            self.asleep = False
            self._elapsed = self._beat = 0
        log = self.log
        index = Index(log.last_index + 1)
        log.append(Entry(index, self.term, data))
        leading.due = True
        return index

    def change_members(self, *, voters: Sequence[NodeId], learners: Sequence[NodeId]) -> Index:
        """Begin to make these the members; other voters come by way of a joint phase, which
        ends by itself. A learner becomes a voter this way, best when it has caught up. Done
        when an entry of kind CONFIG is applied that names no outgoing voters.
        Raises NotLeader or ChangeRefused (both definite)."""
        leading = self._leading
        if leading is None or leading.transfer_to is not None:
            raise NotLeader(self.leader if leading is None else None)
        if self.log.members_index > self.commit or self.commit < leading.term_start:
            raise ChangeRefused("another change of members, or the leader itself, is too new")
        lost = [node for node in voters if leading.is_recovering(node)]
        if lost:
            raise ChangeRefused(f"{lost} lost their logs and may not vote before they catch up")
        return self._append_members(
            first_step(self._members, voters=voters, learners=learners), leading
        )

    def _append_members(self, members: Members, leading: LeaderState) -> Index:
        self.asleep = False
        index = Index(self.log.last_index + 1)
        self.log.append(Entry(index, self.term, encode_members(members), EntryKind.CONFIG))
        self._take_up_members()
        leading.due = True
        return index

    def read_index(self, context: int, *, lease: bool = False) -> None:
        """Ask from which applied index on a read is linearizable; Ready.reads answers. With
        `lease`, and CoreConfig.lease_reads, without asking the others if the lease holds: only
        for a caller that knows its ticks to be on time. Raises NotLeader."""
        leading = self._leading
        if leading is None:
            raise NotLeader(self.leader)
        if self.asleep:
            self.wake()
        leading.read(context, self.commit, lease=lease)

    def lease_holds(self) -> bool:
        """By the count of ticks, for a caller that knows them to be on time. Members that restart
        within it must not vote at once (CoreConfig.lease_reads), or take longer to restart."""
        return self._leading is not None and self._leading.lease_holds(self.commit)

    def end_lease(self) -> None:
        """Ticks were missed: time has passed that we did not count."""
        if self._leading is not None:
            self._leading.end_lease()

    def transfer_leader(self, to: NodeId) -> None:
        """Hand leadership to a voter, once its log is level with ours. Proposals are refused
        until it is done or an election timeout has passed."""
        leading = self._leading
        if leading is None:
            raise NotLeader(self.leader)
        if to not in self._members.voters:
            raise RaftError(f"cannot transfer leadership to {to}: not a voter of this group")
        if to != self.node:
            self.asleep = False
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
            or (
                leading is not None
                and (leading.due or bool(leading.snapshot_to) or bool(leading.reads.confirmed))
            )
            or self._replica.has_committed
            or self.role is not self._told_role
            or self.leader != self._told_leader
            or self.term != self._hard_term
            or self.vote != self._hard_vote
            or self.lives != self._hard_lives
            or self._snapshot_due
        )

    def ready(self) -> Ready:
        """Everything to do since the last Ready; see Ready for the order."""
        leading = self._leading
        snapshot_to: list[NodeId] = []
        reads: list[ReadState] = []
        max_write_bytes = 1 << 62  # a follower's answers cover all that it was sent
        if leading is not None:
            if leading.due:
                leading.send_due(self.commit)
            snapshot_to, leading.snapshot_to = leading.snapshot_to, []
            reads, leading.reads.confirmed = leading.reads.confirmed, []
            max_write_bytes = self._config.max_write_bytes
        log = self.log
        outbox = self._outbox
        messages, outbox.now = outbox.now, []
        promises, outbox.after_persist = outbox.after_persist, []
        entries = log.take_unwritten(max_write_bytes)
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
            reads,
        )

    def status(self) -> CoreStatus:
        leading = self._leading
        return CoreStatus(
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
            voters=self._members.voters,
            learners=self._members.learners,
            outgoing=self._members.outgoing,
            members_index=self.log.members_index,
            recovering=self.recovering,
            asleep=self.asleep,
            peers=leading.status() if leading else (),
        )

    def _take_hard_state(self, *, with_entries: bool) -> HardState | None:
        """Term, vote and lives whenever they changed; the commit index only rides along, since a
        write of its own would cost a flush and only save work after a restart. It never says
        more than is on disk already: if the entries beside it are torn off in a crash, it must
        not stand for those they were to replace."""
        commit = min(self.commit, self.log.persisted)
        changed = (
            self.term != self._hard_term
            or self.vote != self._hard_vote
            or self.lives != self._hard_lives
        )
        if not changed and not (with_entries and commit != self._hard_commit):
            return None
        self._hard_term, self._hard_vote, self._hard_commit = self.term, self.vote, commit
        self._hard_lives = self.lives
        return HardState(self.term, self.vote, commit, self.lives)

    # -- sleep

    @property
    def unused_term(self) -> bool:
        """Whether we lead, and nothing was proposed since."""
        return self._leading is not None and self._leading.term_start == self.log.last_index

    def may_sleep(self, reachable: Container[NodeId]) -> bool:
        """Whether this leader's group has nothing left to do."""
        leading, replica = self._leading, self._replica
        return (
            leading is not None
            and replica.applied == self.log.last_index
            and not self._members.joint
            and leading.may_sleep(self.commit, reachable)
        )

    def keeps_quorum(self, reachable: Container[NodeId]) -> bool:
        """Whether this leader still has a majority if only these nodes are there."""
        leading = self._leading
        if leading is None:
            return False
        there = {id(peer) for node, peer in leading.peers.items() if node in reachable}
        return leading.majority_in(lambda peer: id(peer) in there)

    def sleep(self) -> None:
        """Send the group to sleep: no ticks, no heartbeats, until a message, a proposal or a
        lost node wakes it. Someone has to watch over the nodes meanwhile."""
        if self._leading is not None:
            self._leading.send_to_sleep(self.commit)
            self.asleep = True

    # -- the leader's role

    def _become_leader(self) -> None:
        self.role = Role.LEADER
        self.leader = self.node
        self._ballot = None
        self._elapsed = self._beat = 0
        self._leading = LeaderState(
            node=self.node,
            term=self.term,
            members=self._members,
            log=self.log,
            config=self._config,
            outbox=self._outbox,
        )
        # Entries of earlier terms are committed through this one (section 5.4.2).
        index = Index(self.log.last_index + 1)
        self.log.append(Entry(index, self.term, b"", EntryKind.NOOP))

    def _tick_leader(self, leading: LeaderState) -> None:
        leading.ticks += 1
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

    # -- the leader's view

    def _on_append_reply(self, message: Message) -> None:
        leading = self._leading
        if leading is not None and leading.append_answered(message):
            self._try_commit(leading)

    def _on_heartbeat_reply(self, message: Message) -> None:
        if self._leading is not None:
            self._leading.heartbeat_answered(message, self.commit)

    def _try_commit(self, leading: LeaderState) -> None:
        """Commit by counting, entries of our own term only (section 5.4.2)."""
        index = leading.majority_match()
        if index > self.commit and (index >= leading.term_start or self._bug_commit_earlier_term):
            if self.commit < leading.term_start <= index:
                leading.reads.first_commit(index)
            self._replica.commit = index
            leading.due = True  # an idle follower wants to know
            if self.log.members_index <= index:
                self._members_committed(leading)

    def _members_committed(self, leading: LeaderState) -> None:
        """End the joint phase, or our own part if we are no voter any more (thesis 4.2.2)."""
        if self._bug_late_members:
            self._take_up_members()
        if self._members.joint:
            self._append_members(last_step(self._members), leading)
        elif not self._voter:
            leading.send_due(self.commit)
            leading.resign()
            self._become_follower(self.term, None)

    _on_message: ClassVar[dict[int, Callable[[RaftCore, Message], None]]] = {
        **Follower._on_leader,  # noqa: SLF001 - our own base
        MessageKind.APPEND_REPLY: _on_append_reply,
        MessageKind.HEARTBEAT_REPLY: _on_heartbeat_reply,
    }
