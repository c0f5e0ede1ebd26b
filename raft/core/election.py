"""Elections: the term, vote and role of a member, and the campaigns that change them.

Owns: term, vote, role, leader, the election timer, the ballot; the LeaderState while we lead.
May not touch: the rules for granting a vote (raft/core/vote_granting.py), how entries are
replicated (raft/core/leader.py, raft/core/follower.py), disk, network, clock, random numbers.
Spec: Raft sections 5.1, 5.2 and 6; thesis 3.10 (transfer), 4.2.2 (candidates that are not voters),
9.6 (pre-vote)."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from raft.core.leader import LeaderState
from raft.core.local_progress import LocalProgress
from raft.core.log import RaftLog
from raft.core.membership import MembersInUse
from raft.core.messages import (
    BOTH_NEEDED,
    TRANSFER_VOTE,
    Entry,
    EntryKind,
    Message,
    MessageKind,
    PendingMessages,
)
from raft.core.quorum import Ballot, VoteResult
from raft.core.ready import CoreConfig
from raft.core.vote_granting import LostLog, VoteGranting
from raft.types import NO_NODE, HardState, Index, InvariantViolation, NodeId, Role, Term

PATIENCE = 4  # election timeouts without a leader before a member campaigns that should not
NOTICED_TICKS = 2  # after one member notices a broken link, the others know it by their own ticks
FROM_LEADER = frozenset({MessageKind.APPEND, MessageKind.HEARTBEAT, MessageKind.SNAPSHOT})


class ElectionTimer:
    """Counts ticks since the leader was last heard. `draw` is the only source of randomness."""

    __slots__ = ("_draw", "_election_ticks", "elapsed", "timeout", "timeouts_without_leader")

    def __init__(self, election_ticks: int, draw: Callable[[int, int], int]) -> None:
        self._election_ticks = election_ticks
        self._draw = draw
        self.elapsed = 0  # ticks since we heard the leader, or last campaigned
        self.timeout = 0
        self.timeouts_without_leader = 0  # in a row
        self.reset()

    def reset(self) -> None:
        self.elapsed = 0
        self.timeout = self._draw(self._election_ticks, 2 * self._election_ticks)

    def shorten(self, ticks: int) -> None:
        """Campaign after so many ticks, if not earlier."""
        self.timeout = min(self.timeout, self.elapsed + ticks)


class Election:
    """Term, vote and role of one member."""

    __slots__ = (
        "_ballot",
        "_config",
        "_granting",
        "_leader_type",
        "_local",
        "_log",
        "_lost_log",
        "_may_lead",
        "_members",
        "_pending",
        "_promise_left",
        "_suspects_leader",
        "leader",
        "leading",
        "node",
        "role",
        "term",
        "timer",
        "vote",
    )

    def __init__(
        self,
        *,
        node: NodeId,
        hard_state: HardState,
        log: RaftLog,
        local: LocalProgress,
        members: MembersInUse,
        lost_log: LostLog,
        granting: VoteGranting,
        config: CoreConfig,
        draw: Callable[[int, int], int],
        pending: PendingMessages,
        restarted: bool,
        leader_type: type[LeaderState],
        may_lead: Callable[[bool], bool],
    ) -> None:
        self.node = node
        self._log = log
        self._local = local
        self._members = members
        self._lost_log = lost_log
        self._granting = granting
        self._config = config
        self._pending = pending
        self._leader_type = leader_type
        self._may_lead = may_lead
        self.term: Term = hard_state.term
        self.vote: NodeId = self.restored_vote(hard_state)
        self.role = self._resting_role()
        self.leader: NodeId | None = None
        self.leading: LeaderState | None = None  # exactly while role is LEADER
        self._ballot: Ballot | None = None  # exactly while role is (PRE_)CANDIDATE
        # The leader's node seems to be gone: other candidates may have our vote.
        self._suspects_leader = False
        self._promise_left = self.promised_before(hard_state) if restarted else 0
        self.timer = ElectionTimer(config.election_ticks, draw)
        if members.alone():
            self.timer.timeout = 1  # there is no other voter to wait for

    def restored_vote(self, stored: HardState) -> NodeId:
        """The vote survives a restart, so that a member votes once in a term (figure 2)."""
        return stored.vote

    # -- promises

    def promised_before(self, stored: HardState) -> int:
        """Ticks in which we may not vote after a restart: we may have promised it just before.
        Not if we have always been the only voter: there was nobody to promise it to."""
        if not stored.term or (self._members.alone() and self._log.configurations.latest is None):
            return 0
        return self._config.promise_ticks

    def promise(self) -> None:
        """Grant no vote to another candidate, and do not campaign, for promise_ticks from now: the
        leader of this term serves reads meanwhile (raft/core/read_index.py)."""
        self._promise_left = self._config.promise_ticks

    def _keeps_promise(self, request: Message) -> bool:
        """Whether this request for our vote must be refused. The leader itself has ended its
        lease before it asks for a transfer."""
        return self._promise_left > 0 and request.context != TRANSFER_VOTE

    # -- time

    def tick(self) -> None:
        """One tick of a member that does not lead."""
        timer = self.timer
        timer.elapsed += 1
        if self._promise_left:
            self._promise_left -= 1
        if timer.elapsed >= timer.timeout:
            self._timed_out()

    def _timed_out(self) -> None:
        """No leader was heard for a whole timeout."""
        self.timer.reset()
        self.timer.timeouts_without_leader += 1
        self.leader = None
        if self._lost_log.recovering:
            self._lost_log.ask_others(self.term)
        else:
            self.campaign()
            if self._members.alone() and self._leaves_it_to_others():
                self.timer.timeout = 1  # there is no other voter: ask again soon

    def leader_lost(self, *, first: bool) -> None:
        """The leader's node seems to be gone (its connection broke): other candidates may have our
        vote, unless we have promised otherwise. With `first` we campaign as soon as they know it,
        too. Pre-vote and the votes of the others still protect a leader that is up."""
        if self.leading is None and self.leader is not None:
            self._suspects_leader = True
            if first:
                self.timer.shorten(self._promise_left + NOTICED_TICKS)

    def _hears_leader(self, *, candidate: NodeId) -> bool:
        """Whether a leader was heard within the shortest election timeout. The `candidate`
        does not count as leader: it asks for votes."""
        if self.leading is not None:
            return self._config.check_quorum
        if self._promise_left:
            return True
        if self.timer.elapsed >= self._config.election_ticks:
            return False
        return self.leader is not None and self.leader != candidate and not self._suspects_leader

    # -- terms and roles

    def settle_term(self, message: Message) -> bool:
        """A message of another term (figure 2, rules for all servers). Returns whether the message
        is to be processed."""
        kind = message.kind
        if message.term > self.term:
            if kind == MessageKind.PRE_VOTE:
                return True  # asks about a term that no member has entered yet
            if kind == MessageKind.PRE_VOTE_REPLY and not message.reject:
                return True
            if (
                kind == MessageKind.VOTE
                and message.context != TRANSFER_VOTE
                and self._hears_leader(candidate=message.sender)
            ):
                return False  # section 6: a disruptive server must not depose a live leader
            leader = message.sender if kind in FROM_LEADER else None
            self.become_follower(message.term, leader)
            return True
        if kind in FROM_LEADER:
            # From a deposed leader, or our term is ahead after a campaign that the others never
            # saw. Without an answer the sender would remain leader and we could never rejoin.
            # The answer has our term, in which the sender may lead by now, so it must not answer
            # any of its rounds: the context is 0.
            self._reply(message, MessageKind.HEARTBEAT_REPLY, self.term, reject=False)
        elif kind == MessageKind.PRE_VOTE:
            self._reply(message, MessageKind.PRE_VOTE_REPLY, self.term, reject=True)
        elif kind == MessageKind.VOTE:
            # The candidate must learn our term. Otherwise it may never catch up with a second
            # candidate that it does not know as a member and that raises the term as fast.
            self._reply(message, MessageKind.VOTE_REPLY, self.term, reject=True)
        return False

    def _resting_role(self) -> Role:
        return (
            Role.FOLLOWER if self._members.voter and not self._lost_log.recovering else Role.LEARNER
        )

    def become_follower(self, term: Term, leader: NodeId | None) -> None:
        if term > self.term:
            self.term = term
            self.vote = NO_NODE
        # A follower that only learns of a new term keeps its timer: the candidate may have a log
        # too short to win, and must not keep better candidates from trying.
        if leader is not None or self.role not in (Role.FOLLOWER, Role.LEARNER):
            self.timer.reset()
        if leader is not None or self.leading is not None:
            self.timer.timeouts_without_leader = 0
        self.role = self._resting_role()
        self.leader = leader
        self._suspects_leader = False
        self.leading = None
        self._ballot = None

    def follow(self, leader: NodeId) -> None:
        """A message of the leader of this term arrived."""
        if self.leading is not None:
            raise InvariantViolation(f"two leaders in term {self.term}: {leader} and ourselves")
        if self.leader != leader or self._ballot is not None:
            self.become_follower(self.term, leader)
        self.timer.elapsed = 0
        self._suspects_leader = False

    def recovered(self) -> None:
        """The lost log is replaced: we may vote again."""
        self.role = self._resting_role()

    def refresh_members(self) -> None:
        """Act on the configuration that the log names now."""
        if not self._members.refresh():
            return
        if self.leading is not None:
            self.leading.change_members(self._members.members)
        else:
            self._ballot = None
            self.role = self._resting_role()

    def _become_leader(self) -> None:
        self.role = Role.LEADER
        self.leader = self.node
        self._ballot = None
        self.leading = self._leader_type(
            node=self.node,
            term=self.term,
            members=self._members.members,
            log=self._log,
            config=self._config,
            pending=self._pending,
        )
        # Entries of earlier terms are committed through this one (section 5.4.2).
        index = Index(self._log.last_index + 1)
        self._log.append(Entry(index, self.term, b"", EntryKind.NOOP))

    # -- campaigns

    def campaign(self) -> None:
        """Try to become leader now. No effect on a leader or a member that may not lead."""
        if not self._may_campaign():
            return
        if self._config.pre_vote and not self._members.alone():
            self._become_pre_candidate()
        else:
            self._become_candidate(context=0)

    def _may_campaign(self) -> bool:
        """Not as leader, nor with a log that is lost or about to be replaced, nor if we promised
        not to vote, since we would vote for ourselves."""
        return (
            self.leading is None
            and not self._promise_left
            and (self._members.voter or self._members.is_outgoing_voter() or self._is_last_resort())
            and not self._lost_log.recovering
            and self._local.installing is None
            and not self._leaves_it_to_others()
        )

    def _leaves_it_to_others(self) -> bool:
        """Whether this node should not lead, for a reason outside of Raft, and others may still do
        so. After a long time without a leader we campaign all the same: our log may be the only
        one that can win."""
        alone = self._members.alone()
        patience = self._config.election_ticks * 2 if alone else PATIENCE
        return self.timer.timeouts_without_leader <= patience and not self._may_lead(alone)

    def _is_last_resort(self) -> bool:
        """Whether we are a learner that has had no leader for a long time. By a configuration that
        is not committed the others may count us as a voter and need our vote, but our log ends
        with newer entries of a failed leader, so that we cannot vote for them. If we campaign, we
        either lead until those entries are committed or lose to one of the others; in both cases
        the group makes progress again."""
        return (
            self.timer.timeouts_without_leader > PATIENCE
            and self.node in self._members.members.learners
        )

    def _become_pre_candidate(self) -> None:
        members = self._members.members
        self.role = Role.PRE_CANDIDATE
        self.leader = None
        self._ballot = Ballot(members.voters, members.outgoing)
        self._request_votes(MessageKind.PRE_VOTE, Term(self.term + 1), self._pending.now, context=0)
        self._count_vote(self.node, granted=True)

    def _become_candidate(self, *, context: int) -> None:
        """Begin a new term and vote for ourselves. The requests wait for the disk, and so does our
        own vote (vote_persisted() counts it): a term that we may forget must not elect us. The only
        member of a group need not wait: nobody hears of the term, and the entries that it appends
        are committed only when they, and with them the vote, are on disk."""
        members = self._members.members
        self.term = Term(self.term + 1)
        self.vote = self.node
        self.role = Role.CANDIDATE
        self.leader = None
        self._ballot = Ballot(members.voters, members.outgoing)
        self.timer.reset()
        self._request_votes(
            MessageKind.VOTE, self.term, self._pending.after_persist, context=context
        )
        if members.everyone() == (self.node,):
            self._count_vote(self.node, granted=True)

    def _request_votes(
        self, kind: MessageKind, term: Term, box: list[Message], *, context: int
    ) -> None:
        log = self._log
        both_needed = BOTH_NEEDED if self._members.is_one_of_two() else Term(0)
        for voter in self._members.other_voters():
            box.append(
                Message(
                    kind,
                    self.node,
                    voter,
                    term,
                    index=log.last_index,
                    log_term=log.last_term,
                    hint_term=both_needed,
                    context=context,
                )
            )

    def vote_persisted(self) -> None:
        """Our own vote is on disk: a candidate counts it now."""
        if self.role is Role.CANDIDATE:
            self._count_vote(self.node, granted=True)

    def _count_vote(self, voter: NodeId, *, granted: bool) -> None:
        ballot = self._ballot
        if ballot is None:
            return
        verdict = ballot.record(voter, granted=granted)
        if verdict is VoteResult.LOST:
            hasty = self.role is Role.PRE_CANDIDATE and self._suspects_leader
            self.become_follower(self.term, None)
            if hasty:  # once: the others may have been slow to notice the broken link
                self.timer.shorten(2 * NOTICED_TICKS)
        elif verdict is VoteResult.WON:
            if self.role is Role.CANDIDATE:
                self._become_leader()
            else:
                self._become_candidate(context=0)

    # -- messages

    def step(self, message: Message) -> None:
        """A message that belongs to an election."""
        self._on_kind[message.kind](self, message)

    def _on_pre_vote(self, message: Message) -> None:
        if message.hint_index:
            self._lost_log.answer(message, last_index=self._log.last_index)
            return
        granted = self._granting.grants_pre_vote(
            message,
            term=self.term,
            vote=self.vote,
            leader=self.leader,
            hears_leader=self._hears_leader(candidate=message.sender),
        )
        waits = self._suspects_leader and self.leader is not None
        if waits and not self._granting.log_is_up_to_date(message):
            self.timer.shorten(self._promise_left + 1)  # it cannot win, we can
        term = message.term if granted else self.term
        self._reply(message, MessageKind.PRE_VOTE_REPLY, term, reject=not granted)

    def _on_pre_vote_reply(self, message: Message) -> None:
        if message.hint_index:
            if self._lost_log.answered(message):
                self.recovered()
        elif self.role is Role.PRE_CANDIDATE and (message.reject or message.term == self.term + 1):
            self._count_vote(message.sender, granted=not message.reject)

    def _on_vote(self, message: Message) -> None:
        granted = not self._keeps_promise(message) and self._granting.grants_vote(
            message, vote=self.vote, leader=self.leader
        )
        if granted:
            self.vote = message.sender
            if self.role is Role.PRE_CANDIDATE:
                self.become_follower(self.term, None)
            self.timer.reset()
        self._pending.after_persist.append(
            Message(
                MessageKind.VOTE_REPLY, self.node, message.sender, self.term, reject=not granted
            )
        )

    def _on_vote_reply(self, message: Message) -> None:
        if self.role is Role.CANDIDATE:
            self._count_vote(message.sender, granted=not message.reject)

    def _on_timeout_now(self, _message: Message) -> None:
        """The leader asks us to take over: no pre-vote, and the others may vote in spite of its
        lease (thesis 3.10), which it has ended."""
        self._promise_left = 0
        if self._may_campaign():
            self._become_candidate(context=TRANSFER_VOTE)

    def _reply(self, message: Message, kind: MessageKind, term: Term, *, reject: bool) -> None:
        self._pending.now.append(Message(kind, self.node, message.sender, term, reject=reject))

    _on_kind: ClassVar[dict[MessageKind, Callable[[Election, Message], None]]] = {
        MessageKind.PRE_VOTE: _on_pre_vote,
        MessageKind.PRE_VOTE_REPLY: _on_pre_vote_reply,
        MessageKind.VOTE: _on_vote,
        MessageKind.VOTE_REPLY: _on_vote_reply,
        MessageKind.TIMEOUT_NOW: _on_timeout_now,
    }
