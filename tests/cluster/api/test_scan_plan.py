"""Plans of bulk reads come from a leader whose reads are current."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from broker.cluster.api import scan_plan
from broker.cluster.api.scan_plan import WAITING_MAX, PlanService
from broker.cluster.peers.rpc import CallRefused
from broker.jetstream.config.stream_config import Retention
from broker.scan.protocol import PlanRequest, ScanPlan, decode_plan, encode_plan_request
from broker.server.routing.fair_queue import FairQueue
from raft import NodeId
from tests.support.cluster_fakes import run
from tests.support.server import until

HERE = NodeId(1)
LONG_MS = 600_000


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
                config=SimpleNamespace(name="S", retention=Retention.LIMITS),
            ),
            assignment=SimpleNamespace(peers=(HERE,), incarnation="1.7"),
        )

    async def wait_current(self, _replica: object) -> None:
        if self.deposed:
            raise CallRefused("cannot tell")
        # committed before the plan was asked for, applied meanwhile
        self.store.last_seq = max(self.store.last_seq, 4)

    def service(self) -> PlanService:
        return PlanService(
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
            turns=FairQueue(),
        )

    async def plan(self, request: PlanRequest = PlanRequest()) -> ScanPlan:  # noqa: B008
        return await plan_of(self.service(), request)


async def plan_of(service: PlanService, request: PlanRequest) -> ScanPlan:
    asked = msgspec.msgpack.encode(("$G", "S", encode_plan_request(request).decode()))
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


def test_a_plan_waits_for_the_message_that_a_reader_wants_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scan_plan, "WAIT_MS_MAX", LONG_MS)

    async def test() -> None:
        leader = Leader()
        service = leader.service()
        wanted = PlanRequest(next=5, wait_ms=LONG_MS)
        waits = asyncio.create_task(plan_of(service, wanted))
        await until(lambda: service.waiting == 1)
        leader.store.last_seq = 5
        assert (await waits).last_seq == 5
        assert service.waiting == 0
        # it is there, or nobody may wait: the answer does not wait
        assert (await plan_of(service, wanted)).last_seq == 5
        service.waiting = WAITING_MAX
        assert (await plan_of(service, PlanRequest(next=9, wait_ms=LONG_MS))).last_seq == 5
        assert service.waiting == WAITING_MAX
        # nothing came
        service.waiting = 0
        assert (await plan_of(service, PlanRequest(next=9, wait_ms=1))).last_seq == 5

    run(test())


def test_a_leader_that_is_deposed_during_the_wait_makes_no_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scan_plan, "WAIT_MS_MAX", LONG_MS)

    async def test() -> None:
        leader = Leader()
        service = leader.service()
        waits = asyncio.create_task(plan_of(service, PlanRequest(next=5, wait_ms=LONG_MS)))
        await until(lambda: service.waiting == 1)
        leader.replica.leading = None
        with pytest.raises(CallRefused):
            await waits
        assert service.waiting == 0

    run(test())


def test_a_flood_of_requests_of_one_account_is_answered_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scan_plan, "UNDER_WAY_MAX", 4)
    answers: list[bytes] = []
    begun: list[Any] = []
    service = Leader().service()
    service.spawn = lambda work, _: begun.append(work)
    service.router = cast(Any, SimpleNamespace(publish=lambda *words: answers.append(words[-1])))
    service.account = cast(Any, lambda name: name)
    asked = SimpleNamespace(account="A", stream="S", reply=b"in.1", body=b"{", rules=None)
    for _ in range(10):
        service.take(cast(Any, asked))
    assert (len(begun), len(answers)) == (4, 6)
    assert all(b'"code":503' in answer for answer in answers)
    service.take(cast(Any, SimpleNamespace(**{**vars(asked), "account": "B"})))
    assert len(begun) == 5

    async def test() -> None:
        await asyncio.gather(*begun)
        assert not service.under_way

    run(test())
