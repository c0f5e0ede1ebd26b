"""What a node must have applied before it answers: deletes on other nodes, and the leader."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
from msgspec import Raw

from broker.accounts import Account
from broker.cluster.api.jetstream_api import ApiService
from broker.cluster.api.leader_calls import ApiCall
from broker.cluster.meta.assignments import AssignmentTable
from broker.cluster.meta.meta_group import MetaGroup
from broker.cluster.meta.meta_requests import LEVEL_OF_INDEX, MetaRequests
from broker.cluster.meta.node_table import NodeRecord, SetStanding, Standing
from broker.cluster.meta.stored_table import StoredTable
from broker.cluster.observe.asset_info import AssetInfo
from broker.cluster.peers.leader_table import LeaderTable
from broker.cluster.peers.rpc import CallFailed, Rpc
from broker.cluster.replica.replica import Replica
from broker.jetstream.api.info import ApiStats
from broker.jetstream.api.subjects import parse_api_subject
from raft import Entry, EntryKind, Index, NodeId, Term
from raft.host.host import Host
from tests.support.cluster_fakes import run, turns

US, LEADER, OTHER = NodeId(1), NodeId(2), NodeId(3)


def index(applied: int) -> bytes:
    return applied.to_bytes(8, "little")


class Follower:
    """This node's part of the meta group, and the leader that it asks."""

    def __init__(self, *, applied: int, level: int = LEVEL_OF_INDEX) -> None:
        self.level = level  # of the leader
        self.asked: list[tuple[NodeId, str]] = []
        self.answers: list[asyncio.Future[bytes]] = []
        group = MetaGroup(
            assignments=AssignmentTable(),
            stored=cast(StoredTable, SimpleNamespace(write=lambda: None)),
            host=cast(Host, None),
            on_assigned=lambda _: None,
            on_reconfigured=lambda _: None,
            on_removed=lambda _: None,
            on_leader=lambda _: None,
            on_nodes=lambda: None,
            on_written=lambda: None,
            on_flushed=lambda _: None,
        )
        self.group = group
        self.apply(applied)
        self.requests = MetaRequests(
            node=US,
            rpc=cast(Rpc, SimpleNamespace(call=self._call)),
            leaders=cast(LeaderTable, SimpleNamespace(wait=self._wait_leader)),
            group=group,
            feature_level=lambda _: self.level,
            now_ns=lambda: 0,
        )

    async def _wait_leader(self, _group: int, **_: object) -> NodeId:
        return LEADER

    async def _call(self, to: NodeId, name: str, _body: bytes, *, timeout_s: float) -> bytes:
        self.asked.append((to, name))
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.answers.append(answer)
        return await answer

    def apply(self, index: int) -> None:
        self.group.apply([Entry(Index(index), Term(1), b"", EntryKind.NOOP)])


def test_a_node_waits_until_it_has_applied_what_the_meta_leader_had() -> None:
    async def test() -> None:
        here = Follower(applied=5)
        waiting = asyncio.create_task(here.requests.current())
        await turns(5)
        assert here.asked == [(LEADER, "meta index")]
        here.answers[0].set_result(index(7))
        await turns(5)
        here.apply(6)
        await turns(5)
        assert not waiting.done(), "an entry is missing, which may be the delete"
        here.apply(7)
        await turns(5)
        assert waiting.done()
        await waiting

    run(test())


def test_callers_that_have_to_wait_share_the_next_question() -> None:
    async def test() -> None:
        here = Follower(applied=5)
        first = asyncio.create_task(here.requests.current())
        await turns(5)
        later = [asyncio.create_task(here.requests.current()) for _ in range(20)]
        await turns(5)
        here.answers[0].set_result(index(5))
        await turns(5)
        assert first.done()
        assert not any(task.done() for task in later), "the answer may be older than their call"
        assert len(here.asked) == 2
        here.answers[1].set_result(index(6))
        here.apply(6)
        await turns(30)
        assert all(task.done() for task in later)
        assert len(here.asked) == 2
        await asyncio.gather(first, *later)

    run(test())


def test_a_question_that_fails_is_asked_again_by_the_next_caller() -> None:
    async def test() -> None:
        here = Follower(applied=5)
        failing = asyncio.create_task(here.requests.current())
        await turns(5)
        second = asyncio.create_task(here.requests.current())
        await turns(5)
        here.answers[0].set_exception(CallFailed("lost the link"))
        with pytest.raises(CallFailed):
            await failing
        await turns(5)
        here.answers[1].set_result(index(5))
        await second

    run(test())


def test_a_change_is_answered_when_this_node_has_applied_it_too() -> None:
    """A client that asks the same node afterwards sees it."""

    async def test() -> None:
        here = Follower(applied=5)
        record = NodeRecord(3, "c")
        command = SetStanding(3, Standing.MEMBER, 1)
        waiting = asyncio.create_task(here.requests.change_node(command))
        await turns(5)
        assert here.asked == [(LEADER, "meta change")]
        result = msgspec.msgpack.encode(record)
        here.answers[0].set_result(msgspec.msgpack.encode({"index": 7, "result": Raw(result)}))
        await turns(5)
        here.apply(6)
        await turns(5)
        assert not waiting.done()
        here.apply(7)
        assert await waiting == record

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
            statistics=lambda _account: ApiStats(),
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


def test_a_leader_of_an_earlier_version_is_asked_for_its_index() -> None:
    async def test() -> None:
        here = Follower(applied=5, level=0)
        record = NodeRecord(3, "c")
        waiting = asyncio.create_task(here.requests.change_node(SetStanding(3, Standing.MEMBER, 1)))
        await turns(5)
        here.answers[0].set_result(msgspec.msgpack.encode(record))
        await turns(5)
        assert here.asked == [(LEADER, "meta"), (LEADER, "meta index")]
        here.answers[1].set_result(index(7))
        await turns(5)
        assert not waiting.done()
        here.apply(7)
        assert await waiting == record

    run(test())
