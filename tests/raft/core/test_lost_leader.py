"""The connection to the leader broke: one of the others takes over long before a timeout ends."""

from __future__ import annotations

from raft.core.election import NOTICED_TICKS
from raft.core.messages import MessageKind
from raft.core.raft_core import CoreConfig, RaftCore
from raft.types import Role
from tests.support.core_rig import A, B, C, core_of, drain, message

K = MessageKind
ELECTION_TICKS = CoreConfig().election_ticks


def follower_of_b(*terms: int) -> RaftCore:
    core = core_of(node=A, terms=terms, term=4)
    core.step(message(K.HEARTBEAT, B, A, 4))
    drain(core)
    return core


def ticks_until_campaign(core: RaftCore) -> int:
    for ticks in range(1, 2 * ELECTION_TICKS):
        core.tick()
        if core.role is Role.PRE_CANDIDATE:
            return ticks
    raise AssertionError("it never campaigns")


def asked_by_c(core: RaftCore, *, index: int) -> bool:
    """C asks for a vote; its log has so many entries. Returns whether it would get it."""
    core.step(message(K.PRE_VOTE, C, A, 5, index=index, log_term=4 if index else 0))
    (reply,) = drain(core).messages
    assert reply.kind is K.PRE_VOTE_REPLY
    return not reply.reject


def test_the_first_campaigns_as_soon_as_the_others_know_it() -> None:
    core = follower_of_b()
    core.leader_lost(first=True)
    assert ticks_until_campaign(core) == NOTICED_TICKS


def test_the_others_wait_for_a_whole_timeout() -> None:
    core = follower_of_b()
    core.leader_lost(first=False)
    assert ticks_until_campaign(core) == ELECTION_TICKS


def test_who_must_refuse_the_first_for_its_shorter_log_campaigns_next() -> None:
    core = follower_of_b(4, 4)
    core.leader_lost(first=False)
    assert not asked_by_c(core, index=1)
    assert ticks_until_campaign(core) == 1


def test_who_grants_the_first_its_vote_does_not_campaign() -> None:
    core = follower_of_b(4, 4)
    core.leader_lost(first=False)
    assert asked_by_c(core, index=2)
    assert ticks_until_campaign(core) == ELECTION_TICKS


def test_who_hears_the_leader_refuses_and_does_not_campaign() -> None:
    core = follower_of_b(4, 4)
    assert not asked_by_c(core, index=1)
    assert ticks_until_campaign(core) == ELECTION_TICKS


def test_who_was_refused_asks_once_more_soon() -> None:
    """The others had not noticed the broken link. If they hear the leader, it is theirs to say."""
    core = follower_of_b()
    core.leader_lost(first=True)
    waited = []
    for _ in range(3):
        waited.append(ticks_until_campaign(core))
        for voter in (B, C):
            core.step(message(K.PRE_VOTE_REPLY, voter, A, 4, reject=True))
        assert core.role is Role.FOLLOWER
        drain(core)
    assert waited == [NOTICED_TICKS, 2 * NOTICED_TICKS, ELECTION_TICKS]
