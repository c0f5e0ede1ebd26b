"""What a node must have applied before it answers: deletes on other nodes, and the leader."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from broker.accounts import Account
from broker.cluster.api.jetstream_api import ApiService
from broker.cluster.api.leader_calls import ApiCall
from broker.cluster.meta.meta_group import MetaGroup
from broker.cluster.meta.meta_requests import MetaRequests
from broker.cluster.observe.asset_info import AssetInfo
from broker.cluster.peers.leader_table import LeaderTable
from broker.cluster.peers.rpc import Rpc
from broker.cluster.replica.replica import Replica
from broker.jetstream.api.info import ApiStats
from broker.jetstream.api.subjects import parse_api_subject
from raft import NodeId
from tests.support.cluster_fakes import run, turns

US, LEADER, OTHER = NodeId(1), NodeId(2), NodeId(3)


class Meta:
    """The table on this node, and how often it was read."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.looked = 0

    @property
    def applied(self) -> int:
        self.looked += 1
        return self.index


def test_a_node_waits_until_it_has_applied_what_the_meta_leader_had() -> None:
    async def test() -> None:
        asked: list[tuple[NodeId, str]] = []

        async def wait_leader(_group: int) -> NodeId:
            return LEADER

        async def call(to: NodeId, name: str, _body: bytes, *, timeout_s: float) -> bytes:
            asked.append((to, name))
            return (7).to_bytes(8, "little")

        meta = Meta(5)
        calls = MetaRequests(
            node=US,
            rpc=cast(Rpc, SimpleNamespace(call=call)),
            leaders=cast(LeaderTable, SimpleNamespace(wait=wait_leader)),
            group=cast(MetaGroup, SimpleNamespace(assignments=meta)),
        )
        waiting = asyncio.create_task(calls.current())
        await turns(5)
        assert asked == [(LEADER, "meta index")]
        meta.index = 6
        looked = meta.looked
        while meta.looked < looked + 3:
            assert not waiting.done(), "an entry is missing, which may be the delete"
            await asyncio.sleep(0)
        meta.index = 7
        await waiting

    run(test())


@pytest.mark.parametrize(
    ("subject", "waits"),
    [
        (b"$JS.API.STREAM.CREATE.S", True),
        (b"$JS.API.STREAM.RESTORE.S", True),
        (b"$JS.API.STREAM.NAMES", False),
    ],
)
def test_creates_and_restores_wait_for_a_current_table(subject: bytes, waits: bool) -> None:
    async def test() -> None:
        order: list[str] = []

        async def current() -> None:
            order.append("current")

        async def answer(_call: ApiCall, _stats: ApiStats) -> bytes:
            order.append("decided")
            return b"{}"

        request = parse_api_subject(subject, domain=b"")
        assert request is not None
        founded = asyncio.Event()
        founded.set()
        service = SimpleNamespace(
            meta_requests=SimpleNamespace(current=current),
            streams=SimpleNamespace(answer=answer, members=SimpleNamespace(founded=founded)),
            statistics=ApiStats,
            _is_unknown=lambda _call: False,
            _reply=lambda *_, **__: None,
        )
        call = ApiCall(Account("$G"), request, subject, b"reply", b"", b"{}")
        await ApiService._answer(cast(ApiService, service), call)
        assert order == (["current", "decided"] if waits else ["decided"])

    run(test())


@pytest.mark.parametrize(("leader", "named"), [(LEADER, "two"), (US, "one"), (None, "")])
def test_a_follower_reports_the_leader_it_knows(leader: NodeId | None, named: str) -> None:
    names = {US: "one", LEADER: "two", OTHER: "three"}
    there = SimpleNamespace(
        members=SimpleNamespace(clustered=True, name=names.get),
        leader=lambda _group: leader,
        links=SimpleNamespace(cluster="C", name="one"),
    )
    replica = SimpleNamespace(leading=None, group=7)
    info = AssetInfo.cluster(cast(AssetInfo, there), cast(Replica, replica))
    assert (info.name, info.leader, info.replicas) == ("C", named, ())
