"""Vote granting: when a member grants its vote, and when it must not vote at all.

Owns: the rules for votes and pre-votes; whether this member has lost its log, and when it may vote
again.
May not touch: terms, roles and ballots (raft/core/election.py), disk, clocks, random numbers.
Spec: Raft sections 5.2 and 5.4.1 (one vote per term, to a candidate whose log is up to date);
thesis 9.6 (pre-vote). Lost logs: raft/DIVERGENCE.md, "A log that is lost".

A member that has lost its log (it was in memory only, or is damaged) starts a new life; its hard
state counts the lives. It grants no vote until it has caught up with the end of a leader's log, as
of a time after the new life began: it holds all those entries and knows that they are committed.
The entries that it confirmed before the loss are among them. It votes at once for a candidate that
is one of two voters: the other one, which has lost nothing, holds all that was committed. If all
other voters have lost their logs too, there is nothing to wait for, and the group starts with an
empty log."""

from __future__ import annotations

from raft.core.log import RaftLog
from raft.core.membership import MembersInUse
from raft.core.messages import BOTH_NEEDED, Message, MessageKind, PendingMessages
from raft.types import NO_NODE, Index, NodeId, Term


class LostLog:
    """Whether this member lost its log, and how it recovers.

    `lives` goes up by one when the log is lost and by one when the member has recovered; `life`
    says how often the log was lost."""

    __slots__ = (
        "_also_lost",
        "_members",
        "_node",
        "_pending",
        "_recovered_at",
        "life",
        "lives",
        "recovering",
    )

    def __init__(
        self, node: NodeId, *, lives: int, members: MembersInUse, pending: PendingMessages
    ) -> None:
        self._node = node
        self._members = members
        self._pending = pending
        self._also_lost: set[NodeId] = set()  # voters that answered that their log is lost too
        self._recovered_at: tuple[Term, Index] | None = None  # a leader's term, and the goal
        self._begin(lives)
        if self.recovering and members.alone():
            self._begin(lives + 1)  # there is no other member to recover from

    def _begin(self, lives: int) -> None:
        self.lives = lives
        self.life = (lives + 1) // 2
        self.recovering = lives % 2 == 1

    def ask_others(self, term: Term) -> None:
        """Ask the other voters whether they have lost their logs too. Called when no leader was
        heard for an election timeout."""
        self._also_lost.clear()
        for voter in self._members.other_voters():
            question = Message(MessageKind.PRE_VOTE, self._node, voter, term)
            question.hint_index = Index(self.life)
            self._pending.now.append(question)

    def answer(self, question: Message, *, last_index: Index) -> None:
        """Another member asks whether our log is lost too."""
        reply = Message(
            MessageKind.PRE_VOTE_REPLY, self._node, question.sender, question.term, reject=True
        )
        # A member that has started with an empty log and holds nothing yet still says yes: the
        # others, which may ask later, must come to the same conclusion.
        lost = self.recovering or (self.life > 0 and last_index == 0)
        reply.hint_index, reply.hint_term = question.hint_index, Term(lost)
        self._pending.now.append(reply)

    def answered(self, reply: Message) -> bool:
        """The answer of another member. Returns whether we have recovered: all logs are lost."""
        if not self.recovering or reply.hint_index != self.life:
            return False
        if not reply.hint_term:
            self._also_lost.clear()
            return False
        self._also_lost.add(reply.sender)
        if not self._also_lost.issuperset(self._members.other_voters()):
            return False
        self._begin(self.lives + 1)
        return True

    def heard_leader(self, heartbeat: Message, *, commit: Index, persisted: Index) -> bool:
        """A heartbeat of the leader. The first one of a term that was sent for our present life
        sets the goal: the index at which the leader's log ends. Returns whether we have reached
        it and so have recovered."""
        if heartbeat.hint_index != self.life:
            return False
        goal = self._recovered_at
        if goal is None or goal[0] != heartbeat.term:
            goal = self._recovered_at = (heartbeat.term, heartbeat.index)
        if commit < goal[1] or persisted < goal[1]:
            return False
        self._begin(self.lives + 1)
        return True


class VoteGranting:
    """The rules by which a member grants votes and pre-votes.

    Learners vote too: a learner may be a voter by entries that it has not received yet, and the
    candidate counts only the voters of its own configuration (thesis 4.2.2)."""

    __slots__ = ("_log", "_lost_log")

    def __init__(self, log: RaftLog, lost_log: LostLog) -> None:
        self._log = log
        self._lost_log = lost_log

    def grants_vote(self, request: Message, *, vote: NodeId, leader: NodeId | None) -> bool:
        """`vote` and `leader` are those of the present term, which is the request's."""
        return (
            self._may_vote(request)
            and self.vote_is_free(request.sender, vote=vote, leader=leader)
            and self.log_is_up_to_date(request)
        )

    def grants_pre_vote(
        self,
        request: Message,
        *,
        term: Term,
        vote: NodeId,
        leader: NodeId | None,
        hears_leader: bool,
    ) -> bool:
        """Whether we would vote for the candidate. This is no promise, so nothing is written."""
        return (
            self._may_vote(request)
            and not hears_leader
            and (request.term > term or self.vote_is_free(request.sender, vote=vote, leader=leader))
            and self.log_is_up_to_date(request)
        )

    def _may_vote(self, request: Message) -> bool:
        """The candidate, and not we, must say that there are two voters: with our log we have lost
        what we knew about the members."""
        return not self._lost_log.recovering or request.hint_term == BOTH_NEEDED

    def vote_is_free(self, candidate: NodeId, *, vote: NodeId, leader: NodeId | None) -> bool:
        """One vote per term, and none once the leader of the term is known (section 5.2)."""
        return vote == candidate or (vote == NO_NODE and leader is None)

    def log_is_up_to_date(self, request: Message) -> bool:
        """Whether the candidate's log is at least as up to date as ours (section 5.4.1): a later
        term at its end, or the same term and no smaller index."""
        log = self._log
        return request.log_term > log.last_term or (
            request.log_term == log.last_term and request.index >= log.last_index
        )
