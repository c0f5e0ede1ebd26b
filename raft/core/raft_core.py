"""One Raft group as a pure, deterministic state machine: messages and ticks in, Ready out.

Owns: the parts of one member and the order in which they act; the number and content of each
Ready; whether the group sleeps.
May not touch: disk, network, clock, randomness (`draw` is injected), logging.
Spec: Raft figure 2; thesis 3.10 (transfer), 4 (members), 6.2 (check-quorum), 6.4 (reads), 9.6
(pre-vote), 10.2.1 (disk in parallel with the network). Departures: raft/DIVERGENCE.md."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from raft.core.commitment import Commitment
from raft.core.election import Election
from raft.core.follower import Follower
from raft.core.leader import LeaderState
from raft.core.local_progress import LocalProgress, WrittenHardState
from raft.core.log import RaftLog
from raft.core.log_matching import LogMatching
from raft.core.membership import MembersInUse, first_step, last_step
from raft.core.messages import Entry, Message, MessageKind, PendingMessages, answers_before_sleep
from raft.core.ready import CoreConfig, CoreStatus, ReadState, Ready
from raft.core.vote_granting import LostLog, VoteGranting
from raft.types import HardState, Index, Members, NodeId, NotLeader, Role, SnapshotMeta, Term

__all__ = ["STANDARD_PARTS", "CoreConfig", "CoreParts", "CoreStatus", "RaftCore", "Ready"]

_NO_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class CoreParts:
    """The classes that a RaftCore is made of, one per group of rules. A simulation can replace
    one of them by a subclass to see that it notices a broken rule."""

    commitment: type[Commitment] = Commitment
    log_matching: type[LogMatching] = LogMatching
    members: type[MembersInUse] = MembersInUse
    vote_granting: type[VoteGranting] = VoteGranting
    election: type[Election] = Election
    leader: type[LeaderState] = LeaderState
    follower: type[Follower] = Follower


STANDARD_PARTS = CoreParts()


class RaftCore:
    """One member of one group.

    Inputs do not return outputs: after any of them, call has_ready() and then ready()."""

    __slots__ = (
        "_commitment",
        "_config",
        "_election",
        "_follower",
        "_local",
        "_lost_log",
        "_members",
        "_number",
        "_pending",
        "_reported_leader",
        "_reported_role",
        "_written",
        "asleep",
        "log",
        "node",
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
        restarted: bool = True,
        may_lead: Callable[[bool], bool] = lambda _alone: True,
        parts: CoreParts = STANDARD_PARTS,
    ) -> None:
        """`draw(low, high)` returns low <= n < high. `applied` is the index that the state machine
        has applied: entries up to there are not handed out again, and the log must reach at least
        that far. `voters` and `learners` are those the group began with; configurations in the log
        take precedence. A member whose log is lost starts with hard_state.after_loss() and an
        empty log. `restarted`: it may have promised something that it does not remember.
        `may_lead(alone)` is asked before a campaign: no means, better another member."""
        self.node = node
        self.log = log
        self._config = config
        self._pending = pending = PendingMessages()
        self._commitment = parts.commitment(log, stored=hard_state.commit)
        self._local = LocalProgress(log, self._commitment, applied=applied)
        self._members = parts.members(
            node,
            begun_with=Members(tuple(voters), tuple(learners)),
            configurations=log.configurations,
            commit=self._commitment,
        )
        self._lost_log = LostLog(
            node, lives=hard_state.lives, members=self._members, pending=pending
        )
        self._election = parts.election(
            node=node,
            hard_state=hard_state,
            log=log,
            local=self._local,
            members=self._members,
            lost_log=self._lost_log,
            granting=parts.vote_granting(log, self._lost_log),
            config=config,
            draw=draw,
            pending=pending,
            restarted=restarted,
            leader_type=parts.leader,
            may_lead=may_lead,
        )
        self._follower = parts.follower(
            node=node,
            election=self._election,
            log=log,
            matching=parts.log_matching(log, self._commitment),
            commitment=self._commitment,
            local=self._local,
            members=self._members,
            lost_log=self._lost_log,
            pending=pending,
        )
        self.asleep = False  # needs no ticks until something happens; the host watches the nodes
        self._number = 0  # of the last Ready
        self._written = WrittenHardState(
            hard_state, commit=self._commitment.index, recovering=self._lost_log.recovering
        )
        self._reported_role = self._election.role  # in the last Ready
        self._reported_leader: NodeId | None = None

    # -- state

    @property
    def term(self) -> Term:
        return self._election.term

    @property
    def vote(self) -> NodeId:
        return self._election.vote

    @property
    def role(self) -> Role:
        return self._election.role

    @property
    def leader(self) -> NodeId | None:
        return self._election.leader

    @property
    def commit(self) -> Index:
        return self._commitment.index

    @property
    def applied_index(self) -> Index:
        return self._local.applied

    @property
    def last_index(self) -> Index:
        return self.log.last_index

    @property
    def members(self) -> Members:
        """The members by the latest configuration in the log, committed or not."""
        return self._members.members

    def members_at(self, index: Index) -> Members:
        """The members as of this index, which must not be compacted away."""
        return self._members.at(index)

    @property
    def recovering(self) -> bool:
        """Whether we lost our log and have not caught up."""
        return self._lost_log.recovering

    # -- time and messages

    def tick(self) -> None:
        """One unit of time has passed."""
        election = self._election
        if election.leading is None:
            election.tick()
        elif not election.leading.tick(self._commitment.index):
            election.become_follower(election.term, None)

    def step(self, message: Message) -> None:
        """A message of a peer. Late, repeated and reordered ones are harmless."""
        if self.asleep and not answers_before_sleep(message, term=self._election.term):
            self.wake(because_of=message.sender)
        election = self._election
        if message.term != election.term and not election.settle_term(message):
            return
        match message.kind:
            case MessageKind.APPEND:
                self._follower.on_append(message)
            case MessageKind.APPEND_REPLY:
                self._on_append_reply(message)
            case MessageKind.HEARTBEAT:
                if self._follower.on_heartbeat(message):
                    self.asleep = True
                    self.log.release(self._local.handed, needed=False)
            case MessageKind.HEARTBEAT_REPLY:
                self._on_heartbeat_reply(message)
            case MessageKind.SNAPSHOT:
                self._follower.on_snapshot(message)
            case _:
                election.step(message)

    def _on_append_reply(self, message: Message) -> None:
        leading = self._election.leading
        if leading is not None and leading.append_answered(message):
            self._advance_commit(leading)

    def _on_heartbeat_reply(self, message: Message) -> None:
        leading = self._election.leading
        if leading is not None:
            leading.heartbeat_answered(message, self._commitment.index)

    # -- requests

    def campaign(self) -> None:
        """Try to become leader now. No effect on a leader or a member that may not lead."""
        self._election.campaign()

    def leader_lost(self, *, first: bool = True) -> None:
        """The leader's node seems to be gone (its connection broke): other candidates may have
        our vote, and with `first` we campaign after a part of the timeout."""
        self._election.leader_lost(first=first)

    def propose(self, data: bytes) -> Index:
        """Append to the leader's log. The entry is committed when Ready.committed contains this
        index with the present term; if it contains the index with another term, the entry is lost.
        Raises NotLeader (definite) on other members and during a leadership transfer."""
        election = self._election
        leading = election.leading
        if leading is None:
            raise NotLeader(election.leader)
        if leading.transfer_to is not None:
            raise NotLeader(None)
        if self.asleep:  # the append wakes the others
            self.asleep = False
            leading.restart_timers()
        log = self.log
        index = Index(log.last_index + 1)
        log.append(Entry(index, election.term, data))
        leading.due = True
        return index

    def change_members(self, *, voters: Sequence[NodeId], learners: Sequence[NodeId]) -> Index:
        """Start a change to these members; a joint phase, if needed, ends by itself. The change is
        complete when a CONFIG entry without outgoing voters is applied. To promote a learner, name
        it among the voters, best when it has caught up.
        Raises NotLeader or ChangeRefused (both definite)."""
        leading = self._election.leading
        if leading is None or leading.transfer_to is not None:
            raise NotLeader(self._election.leader if leading is None else None)
        leading.check_change(voters, commit=self._commitment.index)
        step = first_step(self._members.members, voters=voters, learners=learners)
        return self._append_members(step, leading)

    def read_index(self, context: int) -> None:
        """Ask from which applied index on a read is current; Ready.reads says. Raises NotLeader."""
        leading = self._election.leading
        if leading is None:
            raise NotLeader(self._election.leader)
        leading.read(context, self._commitment.index)
        self.wake()  # with the round that the read waits for

    def lease_age(self) -> int | None:
        """How many ticks ago the round was sent that began our lease: for a caller that knows how
        long ticks took. None: we have no lease, or have not applied everything of earlier terms."""
        leading = self._election.leading
        return None if leading is None else leading.lease_age(self._local.applied)

    def use_lease(self) -> None:
        """A read was served under our lease: renew it."""
        if self._election.leading is not None:
            self._election.leading.use_lease()

    def leads_alone(self) -> bool:
        """Whether we lead as the only voter, and have applied everything of earlier terms."""
        leading = self._election.leading
        return leading is not None and leading.leads_alone(self._local.applied)

    def transfer_leader(self, to: NodeId) -> None:
        """Hand leadership to a voter, once its log has caught up with ours. Proposals are refused
        until the transfer is done or an election timeout has passed."""
        leading = self._election.leading
        if leading is None:
            raise NotLeader(self._election.leader)
        if leading.transfer(to):
            self.asleep = False

    # -- reports of the host

    def persisted(self, number: int, *, term: Term) -> None:
        """The writes of Ready `number`, made in `term`, and of all before it are flushed."""
        log, election = self.log, self._election
        before = log.persisted
        if not self._local.flushed(number, term=term, current_term=election.term):
            return
        if election.role is Role.CANDIDATE:
            election.vote_persisted()
        if log.persisted > before:
            if election.leading is not None:
                self._advance_commit(election.leading)
            log.release(self._local.handed, needed=not self.leads_alone())

    def applied(self, index: Index) -> None:
        """The state machine has applied everything up to index."""
        self._local.mark_applied(index)

    def snapshot_installed(self, index: Index, term: Term, members: Members | None = None) -> None:
        """State machine and stored log now start at this snapshot, durably. `members` are those
        of the snapshot; None: those the group began with."""
        self._follower.snapshot_installed(SnapshotMeta(index, term, members))

    def report_unreachable(self, node: NodeId) -> None:
        """Messages to this node were lost: find out again where its log ends."""
        leading = self._election.leading
        if leading is not None:
            leading.unreachable(node)

    def report_snapshot(self, node: NodeId, ok: bool) -> None:  # noqa: FBT001 - fixed interface
        """The transfer asked for by Ready.snapshot_to ended, well or not. Must always be called."""
        leading = self._election.leading
        if leading is not None:
            leading.snapshot_sent(node, ok=ok)

    # -- outputs

    def has_ready(self) -> bool:
        log, pending, written = self.log, self._pending, self._written
        election, local = self._election, self._local
        leading = election.leading
        return (
            log.written != log.last_index
            or bool(pending.now)
            or bool(pending.after_persist)
            or (
                leading is not None
                and (leading.due or bool(leading.snapshot_to) or bool(leading.reads.confirmed))
            )
            or (local.handed < self._commitment.index and local.has_committed)
            or election.role is not self._reported_role
            or election.leader != self._reported_leader
            or election.term != written.term
            or election.vote != written.vote
            or self._lost_log.lives != written.lives
            or local.install_due
        )

    def ready(self) -> Ready:
        """Everything to do since the last Ready; see Ready for the order."""
        election, local = self._election, self._local
        leading = election.leading
        snapshot_to: list[NodeId] = []
        reads: list[ReadState] = []
        max_write_bytes = _NO_LIMIT  # a follower's answers cover everything that it was sent
        if leading is not None:
            if leading.due:
                leading.send_due(self._commitment.index)
            snapshot_to, leading.snapshot_to = leading.snapshot_to, []
            reads, leading.reads.confirmed = leading.reads.confirmed, []
            max_write_bytes = self._config.max_write_bytes
        pending = self._pending
        messages, pending.now = pending.now, []
        promises, pending.after_persist = pending.after_persist, []
        log = self.log
        entries = log.take_unwritten(max_write_bytes)
        hard_state = self._written.take(
            election.term,
            election.vote,
            self._lost_log.lives,
            commit=min(self._commitment.index, log.persisted),
            with_entries=bool(entries),
        )
        self._number += 1
        if entries or hard_state is not None:
            local.wrote(self._number, election.term)
        elif promises and not local.has_unflushed_writes:
            messages += promises  # everything they promise is on disk already
            promises = []
        self._reported_role, self._reported_leader = election.role, election.leader
        return Ready(
            self._number,
            election.term,
            hard_state,
            entries,
            messages,
            promises,
            local.take_committed(self._config.max_committed_bytes),
            local.take_install() if local.install_due else None,
            snapshot_to,
            election.leader,
            election.role,
            reads,
        )

    def status(self) -> CoreStatus:
        election, log = self._election, self.log
        leading = election.leading
        members = self._members.members
        return CoreStatus(
            node=self.node,
            role=election.role,
            term=election.term,
            vote=election.vote,
            leader=election.leader,
            commit=self._commitment.index,
            applied=self._local.applied,
            first_index=log.first_index,
            last_index=log.last_index,
            persisted_index=log.persisted,
            transfer_to=leading.transfer_to if leading else None,
            voters=members.voters,
            learners=members.learners,
            outgoing=members.outgoing,
            members_index=log.configurations.latest_index,
            recovering=self._lost_log.recovering,
            asleep=self.asleep,
            peers=leading.status() if leading else (),
        )

    # -- sleep

    @property
    def unused_term(self) -> bool:
        """Whether we lead, and nothing was proposed since the term began."""
        leading = self._election.leading
        return leading is not None and leading.term_start == self.log.last_index

    def may_sleep(self, reachable: Container[NodeId]) -> bool:
        """Whether this leader's group has nothing left to do."""
        leading = self._election.leading
        return (
            leading is not None
            and self._local.applied == self.log.last_index
            and not self._members.members.joint
            and leading.may_sleep(self._commitment.index, reachable)
        )

    def keeps_quorum(self, reachable: Container[NodeId]) -> bool:
        """Whether this leader still has a majority if only these nodes are up."""
        leading = self._election.leading
        return leading is not None and leading.keeps_quorum(reachable)

    def sleep(self) -> None:
        """No ticks and no heartbeats until a message, a proposal or a lost node wakes the group."""
        leading = self._election.leading
        if leading is not None:
            leading.send_to_sleep(self._commitment.index)
            self.asleep = True
            self.log.release(self._local.handed, needed=False)

    def wake(self, because_of: NodeId | None = None) -> None:
        """Start to count time again. A follower that another node wakes tells its leader."""
        if not self.asleep:
            return
        self.asleep = False
        election = self._election
        election.timer.elapsed = 0
        if election.leading is not None:
            election.leading.wake(self._commitment.index)
        elif election.leader is not None and because_of != election.leader:
            self._follower.wake_leader(election.leader)

    # -- commits and members

    def _advance_commit(self, leading: LeaderState) -> None:
        """More entries are on disk somewhere: commit what the commit rule allows."""
        commitment = self._commitment
        moved = leading.advance_commit(commitment)
        if moved and self.log.configurations.latest_index <= commitment.index:
            self._members_committed(leading)

    def _members_committed(self, leading: LeaderState) -> None:
        """End the joint phase. Step down if we are no longer a voter (thesis 4.2.2)."""
        if self._members.members.outgoing:
            self._append_members(last_step(self._members.members), leading)
        elif not self._members.voter:
            leading.send_due(self._commitment.index)
            leading.resign()
            self._election.become_follower(self._election.term, None)

    def _append_members(self, members: Members, leading: LeaderState) -> Index:
        self.asleep = False
        index = leading.append_members(members)
        self._election.refresh_members()
        return index
