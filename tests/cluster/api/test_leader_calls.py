"""Calls to a leader that may move: which failures are retried, and for how long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.cluster.api.leader_api import LeaderApi
from broker.cluster.api.leader_calls import LeaderCalls
from broker.cluster.peers.leader_table import LeaderTable
from broker.cluster.peers.rpc import CallFailed, CallRefused, Rpc
from broker.jetstream.api.requests import StepdownRequest
from broker.jetstream.api.subjects import ApiKind
from broker.jetstream.errors import ErrCode, JetStreamError
from raft import NodeId
from raft.types import NotLeader
from tests.support.cluster_fakes import run

ONE, TWO = NodeId(1), NodeId(2)


class Leaders:
    """A group whose leader moves with every call; each call has a scripted outcome."""

    def __init__(self, *outcomes: bytes | Exception) -> None:
        self.outcomes = list(outcomes)
        self.asked: list[NodeId] = []
        self.calls = LeaderCalls(
            cast(LeaderTable, SimpleNamespace(wait=self._wait)),
            cast(Rpc, SimpleNamespace(call=self._call)),
        )

    async def _wait(self, _group: int, *, timeout_s: float) -> NodeId:
        if timeout_s <= 0:
            raise JetStreamError(ErrCode.CLUSTER_NOT_AVAIL)
        return (ONE, TWO)[len(self.asked) % 2]

    async def _call(self, to: NodeId, _name: str, _body: bytes, *, timeout_s: float) -> bytes:
        self.asked.append(to)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def call(self, *, within_s: float = 5.0, repeatable: bool = True) -> bytes:
        return await self.calls.call(
            7, "x", b"", within_s=within_s, retry_every_s=0.0, repeatable=repeatable
        )


def test_the_next_leader_is_asked_when_one_refuses() -> None:
    async def test() -> None:
        leaders = Leaders(CallRefused("not the leader"), CallFailed("lost the link"), b"done")
        assert await leaders.call() == b"done"
        assert leaders.asked == [ONE, TWO, ONE]

    run(test())


def test_a_call_that_may_have_been_carried_out_is_not_repeated() -> None:
    async def test() -> None:
        leaders = Leaders(CallRefused("not the leader"), CallFailed("lost the link"), b"done")
        with pytest.raises(CallFailed, match="lost the link"):
            await leaders.call(repeatable=False)
        assert leaders.asked == [ONE, TWO]

    run(test())


@pytest.mark.parametrize("repeatable", [True, False])
def test_without_a_leader_in_time_the_cluster_is_not_available(*, repeatable: bool) -> None:
    async def test() -> None:
        with pytest.raises(JetStreamError) as refused:
            await Leaders(b"done").call(within_s=0.0, repeatable=repeatable)
        assert refused.value.err_code == ErrCode.CLUSTER_NOT_AVAIL

    run(test())


def test_a_step_down_of_a_leader_that_has_just_lost_is_refused_as_such() -> None:
    """The caller asks the new leader; an error of our own would be logged with a traceback."""

    def lost(_to: NodeId) -> None:
        raise NotLeader(None)

    api = SimpleNamespace(
        node=NodeId(1),
        info=SimpleNamespace(
            members=SimpleNamespace(clustered=True), links=SimpleNamespace(connected=lambda _: True)
        ),
    )
    replica = SimpleNamespace(other_voters=lambda: [NodeId(2)], transfer=lost)
    with pytest.raises(CallRefused):
        LeaderApi._stepdown(
            cast(Any, api), cast(Any, replica), ApiKind.STREAM_LEADER_STEPDOWN, StepdownRequest()
        )
