"""A proposal is answered when its entry is applied or another entry took its index."""

from __future__ import annotations

import asyncio

import pytest

from broker.cluster.proposals import LostLeadership, Proposals
from raft import Index, Term
from tests.support.cluster_fakes import run


def test_an_applied_entry_sets_its_result() -> None:
    async def test() -> None:
        waiting = Proposals()
        futures = [waiting.add(Term(2), Index(i)) for i in (5, 6)]
        waiting.applied(Term(2), Index(4), "not ours")
        waiting.applied(Term(2), Index(5), "five")
        waiting.applied(Term(2), Index(6), None)
        assert [future.result() for future in futures] == ["five", None]
        assert len(waiting) == 0

    run(test())


@pytest.mark.parametrize("term", [1, 3])
def test_an_entry_of_another_leader_fails_the_proposal(term: int) -> None:
    async def test() -> None:
        waiting = Proposals()
        future = waiting.add(Term(2), Index(5))
        waiting.applied(Term(term), Index(5), "theirs")
        with pytest.raises(LostLeadership):
            await future
        assert len(waiting) == 0

    run(test())


def test_proposing_at_an_index_again_fails_the_former_proposal() -> None:
    """This node led, lost leadership and leads again: its old entry is gone from the log."""

    async def test() -> None:
        waiting = Proposals()
        former, present = waiting.add(Term(2), Index(5)), waiting.add(Term(4), Index(5))
        with pytest.raises(LostLeadership):
            await former
        waiting.applied(Term(4), Index(5), "second")
        assert present.result() == "second"

    run(test())


def test_proposals_below_the_applied_index_fail() -> None:
    """A leader's first entry, or a batch of publishes, is applied without being reported."""

    async def test() -> None:
        waiting = Proposals()
        lost = [waiting.add(Term(2), Index(i)) for i in (5, 6)]
        ahead = waiting.add(Term(2), Index(8))
        waiting.passed(Index(4))
        assert len(waiting) == 3
        waiting.passed(Index(6))
        for future in lost:
            with pytest.raises(LostLeadership):
                await future
        assert not ahead.done()
        waiting.applied(Term(2), Index(8), "ours")
        waiting.passed(Index(8))
        assert ahead.result() == "ours"
        assert len(waiting) == 0

    run(test())


def test_cancelled_proposals_are_skipped() -> None:
    async def test() -> None:
        waiting = Proposals()
        for how in ("applied", "passed", "again"):
            future = waiting.add(Term(2), Index(5))
            future.cancel()
            match how:
                case "applied":
                    waiting.applied(Term(2), Index(5), "late")
                case "passed":
                    waiting.passed(Index(5))
                case _:
                    waiting.add(Term(3), Index(5)).cancel()
            assert future.cancelled()

    run(test())


def test_closing_a_group_cancels_its_proposals() -> None:
    async def test() -> None:
        waiting = Proposals()
        future = waiting.add(Term(2), Index(5))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await future
        assert len(waiting) == 0
        waiting.applied(Term(2), Index(5), "after the end")

    run(test())
