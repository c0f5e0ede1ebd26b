"""A new leader whose stream has another configuration than the table of streams says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any, cast

from broker.cluster.peers.rpc import CallFailed
from broker.cluster.replica.membership import Membership
from tests.support.cluster_fakes import run


class LeaderOf:
    """A replica that leads; what is proposed is applied at once."""

    def __init__(self, *, stored: str, known: str) -> None:
        self.name, self.term, self.is_leading = "S", 1, True
        self.stream = SimpleNamespace(config=stored)
        self.assignment = SimpleNamespace(config=known)
        self.proposed: list[str] = []

    def stamp(self) -> int:
        return 0

    async def propose(self, command: Any) -> None:
        self.proposed.append(command.config)
        self.stream.config = command.config


async def lead(replica: LeaderOf, barriers: list[str | None]) -> None:
    """`barriers`: what the table says after each; None: the meta leader did not answer."""
    tasks: list[asyncio.Task[None]] = []

    async def barrier() -> None:
        found = barriers.pop(0)
        if found is None:
            raise CallFailed("no answer")
        replica.assignment.config = found

    def spawn(work: Awaitable[None], _: str) -> None:
        tasks.append(asyncio.ensure_future(work))

    membership = Membership(*[cast(Any, SimpleNamespace())] * 10)
    membership.meta_requests = cast(Any, SimpleNamespace(barrier=barrier))
    membership.member_changes = cast(Any, SimpleNamespace(check=lambda _: None))
    membership.spawn = spawn
    membership.leads(cast(Any, replica))
    await asyncio.gather(*tasks)


def test_an_old_table_does_not_undo_an_update() -> None:
    """The node has restarted: its stream has the update, its table not yet."""
    replica = LeaderOf(stored="new", known="old")
    run(lead(replica, [None, "new"]))
    assert replica.proposed == []


def test_an_update_that_the_last_leader_did_not_propose_is_made() -> None:
    replica = LeaderOf(stored="old", known="new")
    run(lead(replica, ["new", "new"]))
    assert replica.proposed == ["new"]


def test_a_newer_update_during_the_proposal_counts() -> None:
    replica = LeaderOf(stored="old", known="new")
    run(lead(replica, ["new", "newest", "newest"]))
    assert replica.proposed == ["new", "newest"]


def test_nothing_is_asked_if_they_are_the_same() -> None:
    replica = LeaderOf(stored="same", known="same")
    run(lead(replica, []))
    assert replica.proposed == []
