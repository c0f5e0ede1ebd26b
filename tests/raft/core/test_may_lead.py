"""A member that should not lead, for a reason that its host knows.

Spec: docs/decisions/0020-cluster-time.md."""

from __future__ import annotations

from raft.core.election import PATIENCE
from raft.core.log import MemoryReader, RaftLog
from raft.core.messages import MessageKind
from raft.core.raft_core import CoreConfig, RaftCore
from raft.types import HardState, NodeId, Role
from tests.support.core_rig import A, B, C, drain, message

CONFIG = CoreConfig()


class Doubt:
    def __init__(self) -> None:
        self.may = False

    def may_lead(self, alone: bool) -> bool:
        return self.may


def core_with(doubt: Doubt, *voters: NodeId) -> RaftCore:
    return RaftCore(
        node=A,
        voters=voters,
        log=RaftLog(MemoryReader()),
        hard_state=HardState(),
        config=CONFIG,
        draw=lambda low, high: low,
        restarted=False,
        may_lead=doubt.may_lead,
    )


def tick(core: RaftCore, times: int) -> None:
    for _ in range(times):
        core.tick()


def test_it_leaves_the_election_to_others_and_campaigns_in_the_end() -> None:
    core = core_with(Doubt(), A, B, C)
    tick(core, PATIENCE * CONFIG.election_ticks)
    assert core.role is Role.FOLLOWER
    core.campaign()
    assert core.role is Role.FOLLOWER
    tick(core, CONFIG.election_ticks)
    assert core.role is Role.PRE_CANDIDATE, "its log may be the only one that can win"


def test_it_campaigns_as_usual_once_it_may() -> None:
    doubt = Doubt()
    core = core_with(doubt, A, B, C)
    tick(core, CONFIG.election_ticks)
    doubt.may = True
    tick(core, CONFIG.election_ticks)
    assert core.role is Role.PRE_CANDIDATE


def test_it_does_not_take_over_when_the_leader_transfers() -> None:
    core = core_with(Doubt(), A, B, C)
    core.step(message(MessageKind.HEARTBEAT, B, A, 1))
    drain(core)
    core.step(message(MessageKind.TIMEOUT_NOW, B, A, 1))
    assert core.role is Role.FOLLOWER


def test_it_votes_for_others() -> None:
    core = core_with(Doubt(), A, B, C)
    core.step(message(MessageKind.VOTE, B, A, 1))
    assert core.vote == B


def test_the_only_voter_asks_every_tick_and_waits_for_two_election_timeouts() -> None:
    doubt = Doubt()
    core = core_with(doubt, A)
    tick(core, 5)
    assert core.role is Role.FOLLOWER
    doubt.may = True
    tick(core, 1)
    assert core.role is Role.LEADER

    core = core_with(Doubt(), A)
    tick(core, 2 * CONFIG.election_ticks)
    assert core.role is Role.FOLLOWER
    tick(core, 1)
    assert core.role is Role.LEADER
