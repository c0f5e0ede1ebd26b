"""Plans of bulk reads come from a leader whose reads are current."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from broker.cluster.api.scan_plan import PlanService
from broker.cluster.peers.rpc import CallRefused
from broker.jetstream.config.stream_config import Retention
from broker.scan.protocol import ScanPlan, decode_plan
from raft import NodeId
from tests.support.cluster_fakes import run

HERE = NodeId(1)


class Leader:
    """The leader of stream S. `deposed`: another one leads by now, and only a barrier tells."""

    def __init__(self, *, deposed: bool = False) -> None:
        self.deposed = deposed
        self.store = SimpleNamespace(first_seq=1, last_seq=2, messages=2, bytes=20)
        self.replica = SimpleNamespace(
            leading=object(),
            group=7,
            stream=SimpleNamespace(
                store=self.store,
                applied=2,
                config=SimpleNamespace(retention=Retention.LIMITS),
            ),
            assignment=SimpleNamespace(peers=(HERE,), incarnation="1.7"),
        )

    async def wait_current(self, _replica: object) -> None:
        if self.deposed:
            raise CallRefused("cannot tell")
        self.store.last_seq = 4  # committed before the plan was asked for, applied meanwhile

    async def plan(self) -> ScanPlan:
        service = PlanService(
            mesh=cast(Any, SimpleNamespace(node=HERE, connected=lambda _: True, hello={})),
            router=cast(Any, None),
            account=cast(Any, None),
            lookup=cast(Any, None),
            replicas=cast(Any, SimpleNamespace(of_stream=lambda *_: self.replica)),
            calls=cast(Any, None),
            wait_current=self.wait_current,
            status=cast(Any, lambda _: SimpleNamespace(core=SimpleNamespace(peers=()))),
            member_name=str,
            spawn=cast(Any, None),
        )
        asked = msgspec.msgpack.encode(("$G", "S"))
        return decode_plan(await service._serve_plan(HERE, asked))


def test_a_plan_names_everything_that_was_committed_before_it_was_asked_for() -> None:
    async def test() -> None:
        plan = await Leader().plan()
        assert (plan.last_seq, plan.replicas[0].applied_seq) == (4, 4)

    run(test())


def test_a_deposed_leader_makes_no_plan() -> None:
    async def test() -> None:
        with pytest.raises(CallRefused):
            await Leader(deposed=True).plan()

    run(test())
