"""The leader table: later terms win, and a leader that starts to serve is a change."""

from __future__ import annotations

import asyncio

import pytest

from broker.cluster.peers.leader_table import LeaderTable
from broker.jetstream.errors import JetStreamError
from raft import NodeId, Term
from tests.support.cluster_fakes import run, turns

GROUP, ONE, TWO = 7, NodeId(1), NodeId(2)


class Known:
    def __init__(self) -> None:
        self.up = {ONE, TWO}
        self.changes: list[int] = []
        self.leaders = LeaderTable(self.up.__contains__, self.changes.append)

    def note(self, term: int, leader: NodeId, *, serving: bool = False) -> None:
        self.leaders.note(GROUP, Term(term), leader, serving=serving)


def test_a_change_is_reported_once_and_earlier_terms_are_ignored() -> None:
    known = Known()
    known.note(2, ONE)
    known.note(2, ONE)
    known.note(1, TWO)
    assert known.leaders.leader(GROUP) == ONE
    assert known.changes == [GROUP]
    known.note(3, TWO)
    assert known.leaders.leader(GROUP) == TWO
    assert known.changes == [GROUP] * 2


def test_an_elected_leader_is_reported_again_when_it_serves() -> None:
    """It has dropped what was sent to it in between."""
    known = Known()
    known.note(2, ONE)
    known.note(2, ONE, serving=True)
    assert known.changes == [GROUP] * 2
    known.note(1, TWO, serving=True)  # of an earlier term
    assert known.changes == [GROUP] * 2


def test_a_leader_without_a_link_counts_as_none() -> None:
    async def test() -> None:
        known = Known()
        known.note(2, ONE)
        known.up.remove(ONE)
        assert known.leaders.leader(GROUP) is None
        with pytest.raises(JetStreamError) as refused:
            await known.leaders.wait(GROUP, timeout_s=0)
        assert refused.value.err_code == 10008

    run(test())


def test_a_waiting_caller_is_woken_by_the_next_leader() -> None:
    async def test() -> None:
        known = Known()
        waiting = asyncio.create_task(known.leaders.wait(GROUP, timeout_s=10))
        await turns()
        assert not waiting.done()
        known.note(1, TWO)
        assert await waiting == TWO

    run(test())


def test_a_leader_serves_from_its_announcement_until_the_next_term() -> None:
    async def test() -> None:
        known = Known()
        known.note(2, ONE)
        assert not await known.leaders.wait_served(GROUP, timeout_s=0)
        waiting = asyncio.create_task(known.leaders.wait_served(GROUP, timeout_s=10))
        await turns()
        assert not waiting.done()
        known.note(2, ONE, serving=True)
        assert await waiting
        known.note(2, ONE)
        assert known.leaders.is_served(GROUP)
        known.note(3, TWO)
        assert not known.leaders.is_served(GROUP)

    run(test())
