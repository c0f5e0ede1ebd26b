"""When a node that starts knows the streams of its cluster, and when clients may come."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.cluster import cluster_nodes
from broker.cluster.cluster_nodes import ClusterNodes
from broker.cluster.meta.members import ClusterMembers
from broker.cluster.meta.node_table import NodeRecord, NodeTable
from broker.cluster.peers.rpc import CallFailed
from raft import NodeId
from tests.support.cluster_fakes import run, turns

HERE = NodeId(1)


class StartingNode:
    """`known`: the table was read from disk; otherwise it is empty. `member`: it has this node."""

    def __init__(self, *, known: bool, member: bool) -> None:
        self.table = NodeTable()
        self.table.load([NodeRecord(1 if member else 2, "a")])
        self.members = ClusterMembers(HERE, self.table, lambda _: "a")
        self.members.refresh()
        self.known = known
        self.barriers: list[asyncio.Future[None]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.told: list[dict[str, object]] = []
        self.nodes = object.__new__(ClusterNodes)
        self.nodes.members = self.members
        self.nodes._loads = 0
        self.nodes.join_groups = lambda _: self.known
        self.nodes.spawn = lambda work, _: self.tasks.append(asyncio.ensure_future(cast(Any, work)))
        self.nodes.meta_requests = cast(Any, SimpleNamespace(barrier=self._barrier))
        self.nodes.mesh = cast(
            Any, SimpleNamespace(node=HERE, tell=lambda **facts: self.told.append(facts))
        )
        self.nodes.server = cast(
            Any,
            SimpleNamespace(lame_duck=False, client_urls=lambda: ["h:1"], ws_urls=list[str]),
        )

    def _barrier(self) -> asyncio.Future[None]:
        self.barriers.append(asyncio.get_running_loop().create_future())
        return self.barriers[-1]

    async def enter(self) -> None:
        self.nodes.enter(cast(Any, None))
        await turns()

    @property
    def state(self) -> tuple[bool, bool, bool]:
        """Clients may come, the table is current, clients of other nodes are told to come."""
        members = self.members
        return members.founded.is_set(), members.learned.is_set(), bool(self.told)


@pytest.mark.parametrize(
    ("known", "member", "at_once"), [(True, True, True), (False, True, False), (True, False, False)]
)
def test_clients_come_to_a_node_that_knows_its_streams(
    known: bool, member: bool, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_nodes, "LEARN_EVERY_S", 0)

    async def test() -> None:
        node = StartingNode(known=known, member=member)
        await node.enter()
        assert node.state == (at_once, False, at_once), "the table is that of an earlier time"
        node.barriers[0].set_exception(CallFailed("no leader"))
        await turns(6)
        assert node.state == (at_once, False, at_once)
        node.table.load([NodeRecord(1, "a")])  # the entry that lets this node join was applied
        node.members.refresh()
        node.barriers[-1].set_result(None)
        await asyncio.wait_for(node.tasks[0], 10)
        assert node.state == (True, True, True)

    run(test())


def test_a_table_that_was_read_again_is_learned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_nodes, "LEARN_EVERY_S", 0)

    async def test() -> None:
        node = StartingNode(known=True, member=True)
        await node.enter()
        await node.enter()  # the disk failed and works again, before the first barrier was passed
        first, second = node.barriers
        first.set_result(None)
        await asyncio.wait_for(node.tasks[0], 10)
        assert not node.members.learned.is_set()
        second.set_result(None)
        await asyncio.wait_for(node.tasks[1], 10)
        assert node.members.learned.is_set()

    run(test())
