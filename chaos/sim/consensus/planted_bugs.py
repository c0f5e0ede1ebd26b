"""Planted bugs: consensus rules broken on purpose, to prove that the simulator notices.

Owns: one subclass per bug, each of which breaks a single rule of the core, rounds or node.
May not touch: production code; a bug is chosen by the parts that a simulated node is built from.
Spec: checks.py must report each of them within 2,000 seeds (tests/chaos/sim)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from chaos.sim.consensus.disk import MachineState
from chaos.sim.consensus.node import SimNode
from chaos.sim.consensus.round_loop import SimGroup
from raft.core.commitment import Commitment
from raft.core.election import Election
from raft.core.follower import Follower
from raft.core.leader import LeaderState
from raft.core.log_matching import LogMatching
from raft.core.membership import MembersInUse
from raft.core.messages import Entry, Message, MessageKind
from raft.core.raft_core import STANDARD_PARTS, CoreParts
from raft.core.vote_granting import VoteGranting
from raft.host.rounds import Effects, Rounds
from raft.types import NO_NODE, GroupId, HardState, Index, Members, NodeId, Role, Term

SNAPSHOT_TAIL_LOSS: Final = 0.3  # probability that a snapshot loses its last chunk
_LATEST: Final = Term(1 << 62)


class ForgetsVoteOnRestart(Election):
    """Raft figure 2: votedFor is persistent."""

    __slots__ = ()

    def restored_vote(self, stored: HardState) -> NodeId:
        return NO_NODE


class ConfirmsAppendBeforeFlush(Follower):
    """Raft figure 2: respond after updating stable storage."""

    __slots__ = ()

    def confirm_append(self, to: NodeId, index: Index) -> None:
        super().confirm_append(to, index)
        self._pending.now.append(self._pending.after_persist.pop())


class CommitsEarlierTerm(Commitment):
    """Section 5.4.2: a leader counts replicas only for entries of its own term."""

    __slots__ = ()

    def may_commit(self, index: Index, *, term_start: Index) -> bool:
        return index > self.index


class GrantsPreVoteToAnyLog(VoteGranting):
    """Thesis 9.6: a pre-vote needs a log that is up to date."""

    __slots__ = ()

    def grants_pre_vote(
        self,
        request: Message,
        *,
        term: Term,
        vote: NodeId,
        leader: NodeId | None,
        hears_leader: bool,
    ) -> bool:
        return super().grants_pre_vote(
            replace(request, log_term=_LATEST),
            term=term,
            vote=vote,
            leader=leader,
            hears_leader=hears_leader,
        )


class TruncatesOnStaleAppend(LogMatching):
    """Section 5.3: only a conflict truncates the log."""

    __slots__ = ()

    def first_new(self, entries: Sequence[Entry]) -> int:
        return 0


class CountsLearnersAsVoters(LeaderState):
    """Thesis 4.2.1: learners do not count towards a majority."""

    __slots__ = ()

    def voter_sets(self, members: Members) -> list[tuple[NodeId, ...]]:
        return [(*voters, *members.learners) for voters in super().voter_sets(members)]


class CountsNewVotersOnly(LeaderState):
    """Section 6: a joint configuration needs majorities of the old and of the new voters."""

    __slots__ = ()

    def voter_sets(self, members: Members) -> list[tuple[NodeId, ...]]:
        return super().voter_sets(members)[:1]


class CountsRemovedMembers(Election):
    """Section 6: an election is decided by the voters of the configuration in use. Here removed
    members are asked as well, and their votes count."""

    __slots__ = ()

    def _request_votes(
        self, kind: MessageKind, term: Term, box: list[Message], *, context: int
    ) -> None:
        super()._request_votes(kind, term, box, context=context)
        asked = {self.node, *self._members.other_voters()}
        for request in box[-1:]:
            box += [replace(request, to=one) for one in self._begun() if one not in asked]

    def _begun(self) -> tuple[NodeId, ...]:
        return self._members.at(Index(0)).voters

    def _count_vote(self, voter: NodeId, *, granted: bool) -> None:
        voters = self._members.members.voters
        if granted and voter not in voters:
            silent = (one for one in voters if one not in self._answered())
            voter = next(silent, voter)
        super()._count_vote(voter, granted=granted)

    def _answered(self) -> dict[NodeId, bool]:
        return {} if self._ballot is None else self._ballot._answers  # noqa: SLF001


class UsesMembersWhenCommitted(MembersInUse):
    """Thesis 4.1: a configuration is in use as soon as it is in the log."""

    __slots__ = ()

    def effective(self) -> Members:
        return self.at(self._commit.index)


class TakesUpMembersAfterStep(SimNode):
    """Goes with UsesMembersWhenCommitted: a commit may bring another configuration into use."""

    def _step(self, message: Message) -> None:
        super()._step(message)
        self.core._election.refresh_members()  # noqa: SLF001 - the bug reaches into the core


class ReadsWithoutConfirmation(LeaderState):
    """Thesis 6.4: a leader confirms that it still leads before it answers a read."""

    __slots__ = ()

    def read(self, context: int, commit: Index) -> None:
        super().read(context, commit)
        self.reads.answered(self.reads.round + 1)


class ReadsWhileAsleep(SimNode):
    """A group that sleeps has no lease: reachable nodes prove nothing about the next leader."""

    def reads_are_current(self) -> bool:
        core = self.core
        asleep = core.role is Role.LEADER and core.asleep
        reachable = self._quiescence.reachable
        return (asleep and core.keeps_quorum(reachable)) or super().reads_are_current()


class ReadsAfterLease(SimNode):
    """Thesis 6.4.1: a lease ends by the clock, and not when the leader learns of the next one."""

    def reads_are_current(self) -> bool:
        return self.core.lease_age() is not None


class VotesInSpiteOfPromise(Follower):
    """A member that grants a lease grants no vote as long as the lease may last."""

    __slots__ = ()

    def promise(self) -> None:
        pass


class ForgetsPromiseOnRestart(Election):
    """A member that restarts may have granted a lease just before."""

    __slots__ = ()

    def promised_before(self, stored: HardState) -> int:
        return 0


class KeepsDamagedEntry(SimNode):
    """A log with a damaged entry must be given up."""

    def check_log(self) -> None:
        pass


class LosesSnapshotTail(SimNode):
    """A snapshot must arrive as a whole."""

    def snapshot_chunks(self, state: MachineState) -> list[bytes]:
        chunks = super().snapshot_chunks(state)
        return chunks[:-1] if self._rng.random() < SNAPSHOT_TAIL_LOSS else chunks


class PromisesWhenWritten(Rounds[SimGroup]):
    """Raft figure 2, again: a vote or an answer leaves after the flush of its batch."""

    def written(self, number: int) -> Effects[SimGroup]:
        effects = super().written(number)
        batch = self._in_flight
        if batch is not None:
            promises, batch.promises = batch.promises, []
            self._release(promises, effects)
        return effects


class WritesEntriesAfterSnapshot(Rounds[SimGroup]):
    """Entries that wait to be written must not follow the snapshot that replaces their log."""

    def supersede(self, group: GroupId) -> None:
        pass


class CountsFailedFlush(Rounds[SimGroup]):
    """After a failed flush, what was not confirmed must be written and flushed again."""

    def restart(self) -> Effects[SimGroup]:
        unconfirmed = [promise for batch in self._unconfirmed() for promise in batch.promises]
        for batch in self._unconfirmed():
            batch.promises = []
        effects = super().restart()
        self._release(unconfirmed, effects)
        return effects


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """What a simulated cluster is built from."""

    parts: CoreParts = STANDARD_PARTS
    node_type: type[SimNode] = SimNode
    rounds_type: type[Rounds[SimGroup]] = Rounds


NO_BUG: Final = PlantedBug()

PLANTED_BUGS: Final[dict[str, PlantedBug]] = {
    "forget_vote": PlantedBug(CoreParts(election=ForgetsVoteOnRestart)),
    "append_before_flush": PlantedBug(CoreParts(follower=ConfirmsAppendBeforeFlush)),
    "commit_earlier_term": PlantedBug(CoreParts(commitment=CommitsEarlierTerm)),
    "pre_vote_any_log": PlantedBug(CoreParts(vote_granting=GrantsPreVoteToAnyLog)),
    "truncate_stale": PlantedBug(CoreParts(log_matching=TruncatesOnStaleAppend)),
    "count_learner": PlantedBug(CoreParts(leader=CountsLearnersAsVoters)),
    "joint_new_only": PlantedBug(CoreParts(leader=CountsNewVotersOnly)),
    "removed_votes": PlantedBug(CoreParts(election=CountsRemovedMembers)),
    "late_members": PlantedBug(
        CoreParts(members=UsesMembersWhenCommitted), TakesUpMembersAfterStep
    ),
    "read_unconfirmed": PlantedBug(CoreParts(leader=ReadsWithoutConfirmation)),
    "read_asleep": PlantedBug(node_type=ReadsWhileAsleep),
    "read_after_lease": PlantedBug(node_type=ReadsAfterLease),
    "break_promise": PlantedBug(CoreParts(follower=VotesInSpiteOfPromise)),
    "forget_promise": PlantedBug(CoreParts(election=ForgetsPromiseOnRestart)),
    "keep_damaged": PlantedBug(node_type=KeepsDamagedEntry),
    "lose_snapshot_tail": PlantedBug(node_type=LosesSnapshotTail),
    "promise_when_written": PlantedBug(rounds_type=PromisesWhenWritten),
    "write_after_snapshot": PlantedBug(rounds_type=WritesEntriesAfterSnapshot),
    "count_failed_flush": PlantedBug(rounds_type=CountsFailedFlush),
}
