"""Who we are in the present term: role, vote, leader, and the elections that change them.

Owns: term, vote, role, leader, the election timer and the ballot of one member; whether it has
lost its log and must not vote.
May not touch: how entries are replicated (RaftCore and Leading), disk, network, clock, dice.
Spec: Raft sections 5.1, 5.2, 5.4.1 and 6; thesis 3.10 (transfer), 9.6 (pre-vote).

A member that lost its log (kept in memory only, or damaged) starts a new life, counted in its
hard state. It gives no vote until it holds and knows to be committed all that a leader's log
held after the new life began: nothing it ever confirmed reaches further. If every other voter
has lost its log too there is nothing to wait for, and the group starts afresh."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from raft.core.leader import LeaderState, PendingMessages
from raft.core.log import RaftLog
from raft.core.messages import Message, MessageKind
from raft.core.quorum import Ballot, VoteResult
from raft.core.ready import CoreConfig
from raft.types import NO_NODE, HardState, Index, Members, NodeId, Role, Term

TRANSFER_VOTE = 1  # context of a vote request that the leader itself asked for (thesis 3.10)
LEARNER_PATIENCE = 4  # election timeouts without a leader before a learner tries
FROM_LEADER = frozenset({MessageKind.APPEND, MessageKind.HEARTBEAT, MessageKind.SNAPSHOT})


class Election:
    """The part of a RaftCore that holds elections. Abstract: RaftCore says how to lead."""

    __slots__ = (
        "_ballot",
        "_config",
        "_draw",
        "_elapsed",
        "_leading",
        "_lost_too",
        "_members",
        "_outbox",
        "_recovered_at",
        "_suspicious",
        "_timeout",
        "_unled",
        "_voter",
        "_wary",
        "leader",
        "lives",
        "log",
        "node",
        "role",
        "term",
        "vote",
    )

    def __init__(
        self,
        *,
        node: NodeId,
        members: Members,
        log: RaftLog,
        hard_state: HardState,
        config: CoreConfig,
        draw: Callable[[int, int], int],
    ) -> None:
        self.node = node
        self.log = log
        self._members = members
        self._config = config
        self._draw = draw
        self.lives = hard_state.lives
        if self.recovering and members.alone(node):
            self.lives += 1  # nobody could give us anything
        self._recovered_at: tuple[Term, Index] | None = None  # who said so, and where that is
        self._lost_too: set[NodeId] = set()
        self._voter = members.has_voter(node)
        self.term: Term = hard_state.term
        self.vote: NodeId = NO_NODE if "forget_vote" in config.bugs else hard_state.vote
        self.role = self._resting_role()
        self.leader: NodeId | None = None
        self._leading: LeaderState | None = None  # exactly while role is LEADER
        self._ballot: Ballot | None = None  # exactly while role is (PRE_)CANDIDATE
        self._outbox = PendingMessages()
        self._elapsed = 0  # ticks since we heard the leader, or last tried ourselves
        self._timeout = 0
        self._unled = 0  # timeouts in a row without a leader
        self._suspicious = False  # the leader's node seems gone: others may have our vote
        # Before our restart we may have upheld a lease: no vote until it has run out.
        self._wary = config.lease_reads and hard_state.term > 0
        self._reset_timer()
        if members.alone(node):
            self._timeout = 1  # nobody to wait for

    @property
    def recovering(self) -> bool:
        """Whether we lost our log and have not caught up."""
        return self.lives % 2 == 1

    @property
    def life(self) -> int:
        """How often we lost our log."""
        return (self.lives + 1) // 2

    def _become_leader(self) -> None:
        raise NotImplementedError

    @property
    def _may_campaign(self) -> bool:
        raise NotImplementedError

    def _election_due(self) -> None:
        """No leader was heard for a whole timeout."""
        self._reset_timer()
        self._unled += 1
        self._wary = False
        self.leader = None
        if self.recovering:
            self._ask_whether_all_is_lost()
        else:
            self.campaign()

    def campaign(self) -> None:
        """Try to become leader now. No effect on a leader or a member that may not lead."""
        if not self._may_campaign:
            return
        if self._config.pre_vote and not self._members.alone(self.node):
            self._become_pre_candidate()
        else:
            self._become_candidate(context=0)

    # -- terms and roles

    def _settle_term(self, message: Message) -> bool:
        """Compare terms (figure 2, rules for all servers). Whether to go on with the message."""
        kind = message.kind
        if message.term > self.term:
            if kind == MessageKind.PRE_VOTE:
                return True  # asks about a term nobody is in yet
            if kind == MessageKind.PRE_VOTE_REPLY and not message.reject:
                return True
            if (
                kind == MessageKind.VOTE
                and message.context != TRANSFER_VOTE
                and self._hears_leader(but=message.sender)
            ):
                return False  # section 6: a disruptive server must not depose a live leader
            leader = message.sender if kind in FROM_LEADER else None
            self._become_follower(message.term, leader)
            return True
        if kind in FROM_LEADER:
            # A deposed leader, or we are ahead after a campaign that the others never saw:
            # without an answer it would go on as leader and we could never rejoin. The answer
            # is of our term, whose leader it may have become: it answers none of its rounds.
            self._answer(message, MessageKind.HEARTBEAT_REPLY)
        elif kind == MessageKind.PRE_VOTE:
            self._answer(message, MessageKind.PRE_VOTE_REPLY, reject=True)
        elif kind == MessageKind.VOTE:
            # It must learn our term, or it may run after it for ever: another candidate, whom
            # it does not know as a member, may count it up as fast.
            self._answer(message, MessageKind.VOTE_REPLY, reject=True)
        return False

    def _hears_leader(self, *, but: NodeId) -> bool:
        """Whether a leader was heard within the shortest election timeout. The one who asks
        for a vote leads no more."""
        if self._leading is not None:
            return self._config.check_quorum
        if self._elapsed >= self._config.election_ticks:
            return False
        if self._wary:
            return True
        return self.leader is not None and self.leader != but and not self._suspicious

    def leader_lost(self, *, first: bool = True) -> None:
        """The leader's node seems to be gone (its connection broke): others may have our vote,
        and we, if we are to be the first, wait for a part of the timeout only. Pre-vote and
        the others' word still protect a leader that lives."""
        if self._leading is None and self.leader is not None:
            ticks = self._config.election_ticks
            self._suspicious = not self._config.lease_reads
            if first:
                self._timeout = min(self._timeout, self._elapsed + self._draw(1, ticks))

    def _reset_timer(self) -> None:
        self._elapsed = 0
        ticks = self._config.election_ticks
        self._timeout = self._draw(ticks, 2 * ticks)

    def _become_follower(self, term: Term, leader: NodeId | None) -> None:
        if term > self.term:
            self.term = term
            self.vote = NO_NODE
        # A follower that only learns of a new term keeps waiting: the one who told it may
        # have a log too short to win, and must not keep better ones from trying.
        if leader is not None or self.role not in (Role.FOLLOWER, Role.LEARNER):
            self._reset_timer()
        if leader is not None or self._leading is not None:
            self._unled = 0
        self.role = self._resting_role()
        self.leader = leader
        self._suspicious = False
        self._leading = None
        self._ballot = None

    def _resting_role(self) -> Role:
        return Role.FOLLOWER if self._voter and not self.recovering else Role.LEARNER

    def _adopt(self, members: Members) -> None:
        """The log says that these are the members now."""
        self._members = members
        self._voter = members.has_voter(self.node)
        if self._leading is not None:
            self._leading.adopt(members)
        else:
            self._ballot = None
            self.role = self._resting_role()

    def _become_pre_candidate(self) -> None:
        self.role = Role.PRE_CANDIDATE
        self.leader = None
        self._ballot = Ballot(self._members.voters, self._members.outgoing)
        self._ask_votes(MessageKind.PRE_VOTE, Term(self.term + 1), context=0)
        self._count_vote(self.node, granted=True)

    def _become_candidate(self, *, context: int) -> None:
        """A new term with our vote in it. Requests wait for the disk, and so does our own
        vote (persisted() counts it): a term we may forget must not elect us."""
        self.term = Term(self.term + 1)
        self.vote = self.node
        self.role = Role.CANDIDATE
        self.leader = None
        self._ballot = Ballot(self._members.voters, self._members.outgoing)
        self._reset_timer()
        self._ask_votes(MessageKind.VOTE, self.term, context=context)

    # -- elections

    def _ask_votes(self, kind: MessageKind, term: Term, *, context: int) -> None:
        log = self.log
        outbox = self._outbox
        box = outbox.now if kind == MessageKind.PRE_VOTE else outbox.after_persist
        for voter in self._members.all_voters():
            if voter != self.node:
                box.append(
                    Message(
                        kind,
                        self.node,
                        voter,
                        term,
                        index=log.last_index,
                        log_term=log.last_term,
                        context=context,
                    )
                )

    def _count_vote(self, voter: NodeId, *, granted: bool) -> None:
        ballot = self._ballot
        if ballot is None:
            return
        verdict = ballot.record(voter, granted=granted)
        if verdict is VoteResult.LOST:
            self._become_follower(self.term, None)
        elif verdict is VoteResult.WON:
            if self.role is Role.CANDIDATE:
                self._become_leader()
            else:
                self._become_candidate(context=0)

    def _on_pre_vote(self, message: Message) -> None:
        """Would we vote for it? No promise, so nothing to persist (thesis 9.6). A learner may
        be a voter by entries that it has yet to receive, so it votes too; the candidate knows
        whose votes count (thesis 4.2.2)."""
        if message.hint_index:
            self._tell_whether_lost(message)
            return
        granted = (
            not self.recovering
            and not self._hears_leader(but=message.sender)
            and (message.term > self.term or self._may_vote(message.sender))
            and (
                self.log.is_no_newer_than(message.index, message.log_term)
                or "pre_vote_any_log" in self._config.bugs
            )
        )
        term = message.term if granted else self.term
        self._answer(message, MessageKind.PRE_VOTE_REPLY, term=term, reject=not granted)

    def _on_vote(self, message: Message) -> None:
        granted = (
            not self.recovering
            and self._may_vote(message.sender)
            and self.log.is_no_newer_than(message.index, message.log_term)
        )
        if granted:
            self.vote = message.sender
            if self.role is Role.PRE_CANDIDATE:
                self._become_follower(self.term, None)
            self._reset_timer()
        self._outbox.after_persist.append(
            Message(
                MessageKind.VOTE_REPLY, self.node, message.sender, self.term, reject=not granted
            )
        )

    def _may_vote(self, candidate: NodeId) -> bool:
        """One vote per term, and none once its leader is known (section 5.2)."""
        return self.vote == candidate or (self.vote == NO_NODE and self.leader is None)

    def _on_pre_vote_reply(self, message: Message) -> None:
        if message.hint_index:
            self._heard_whether_lost(message)
        elif self.role is Role.PRE_CANDIDATE and (message.reject or message.term == self.term + 1):
            self._count_vote(message.sender, granted=not message.reject)

    def _on_vote_reply(self, message: Message) -> None:
        if self.role is Role.CANDIDATE:
            self._count_vote(message.sender, granted=not message.reject)

    def _on_timeout_now(self, _message: Message) -> None:
        """The leader asks us to take over: no pre-vote, and others may vote despite its lease."""
        if self._may_campaign:
            self._become_candidate(context=TRANSFER_VOTE)

    # -- a lost log

    def _ask_whether_all_is_lost(self) -> None:
        self._lost_too.clear()
        for voter in self._members.all_voters():
            if voter != self.node:
                question = Message(MessageKind.PRE_VOTE, self.node, voter, self.term)
                question.hint_index = Index(self.life)
                self._outbox.now.append(question)

    def _tell_whether_lost(self, message: Message) -> None:
        reply = Message(
            MessageKind.PRE_VOTE_REPLY, self.node, message.sender, message.term, reject=True
        )
        # One that has started afresh and holds nothing yet still says so: the others, which may
        # ask later, must come to the same conclusion.
        nothing_left = self.recovering or (self.life > 0 and self.log.last_index == 0)
        reply.hint_index, reply.hint_term = message.hint_index, Term(nothing_left)
        self._outbox.now.append(reply)

    def _heard_whether_lost(self, message: Message) -> None:
        if not self.recovering or message.hint_index != self.life:
            return
        if not message.hint_term:
            self._lost_too.clear()
            return
        self._lost_too.add(message.sender)
        if self._lost_too >= set(self._members.all_voters()) - {self.node}:
            self._recovered()

    def _note_recovery(self, message: Message, commit: Index) -> None:
        """A heartbeat. If it was sent in this life of ours, its end of the log is far enough:
        the first one of a term sets the mark."""
        if message.hint_index != self.life:
            return
        mark = self._recovered_at
        if mark is None or mark[0] != message.term:
            mark = self._recovered_at = (message.term, message.index)
        if commit >= mark[1] and self.log.persisted >= mark[1]:
            self._recovered()

    def _recovered(self) -> None:
        self.lives += 1
        self.role = self._resting_role()

    def _answer(
        self,
        message: Message,
        kind: MessageKind,
        *,
        term: Term | None = None,
        reject: bool = False,
        context: int = 0,
    ) -> None:
        self._outbox.now.append(
            Message(
                kind,
                self.node,
                message.sender,
                self.term if term is None else term,
                reject=reject,
                context=context,
            )
        )

    _on_election: ClassVar[dict[int, Callable[[Election, Message], None]]] = {
        MessageKind.PRE_VOTE: _on_pre_vote,
        MessageKind.PRE_VOTE_REPLY: _on_pre_vote_reply,
        MessageKind.VOTE: _on_vote,
        MessageKind.VOTE_REPLY: _on_vote_reply,
        MessageKind.TIMEOUT_NOW: _on_timeout_now,
    }
