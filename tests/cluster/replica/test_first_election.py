"""The first election of a new stream: one campaign, and no second term while it is under way."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.cluster.replica.replica import CAMPAIGN_AFTER_S, CAMPAIGNS_MAX, Replica
from raft import NodeId, Role
from tests.support.cluster_fakes import ClockedLoop, run_clocked


class FirstElection:
    """The replica as far as it campaigns, and its group."""

    def __init__(self) -> None:
        self.core = SimpleNamespace(leader=None, role=Role.FOLLOWER)
        self.campaigns = 0
        held = SimpleNamespace(core=self.core, stopped=None)
        host = SimpleNamespace(held=lambda _: held, campaign=self._campaigned)
        self._replica = SimpleNamespace(group=7, _host=host, campaign=self.campaign)

    def _campaigned(self, _group: int) -> None:
        self.campaigns += 1

    def campaign(self, attempt: int = 0) -> None:
        Replica.campaign(cast(Replica, self._replica), attempt)


async def pass_time(loop: ClockedLoop) -> None:
    for _ in range(CAMPAIGNS_MAX + 2):
        await loop.advance(CAMPAIGN_AFTER_S * 2**CAMPAIGNS_MAX)
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("role", "leader", "campaigns"),
    [
        (Role.PRE_CANDIDATE, None, 1 + CAMPAIGNS_MAX),  # nobody has answered yet
        (Role.CANDIDATE, None, 1),  # a majority has: votes are on their way to the disks
        (Role.FOLLOWER, NodeId(2), 1),
    ],
)
def test_a_campaign_is_repeated_only_while_nobody_answers(
    role: Role, leader: NodeId | None, campaigns: int
) -> None:
    async def test(loop: ClockedLoop) -> None:
        election: Any = FirstElection()
        election.campaign()
        election.core.role, election.core.leader = role, leader
        await pass_time(loop)
        assert election.campaigns == campaigns

    run_clocked(test)
