"""A node whose table of streams lags does not say that a stream does not exist."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.accounts import Account
from broker.cluster.api import jetstream_api
from broker.cluster.api.jetstream_api import ApiService
from broker.cluster.api.leader_calls import ApiCall
from broker.cluster.api.scan_plan import PlanService
from broker.cluster.api.write_batches import WriteService
from broker.cluster.meta.feature_level import WRITERS
from broker.cluster.stream_requests import StreamLookup
from broker.jetstream.api.subjects import parse_api_subject
from broker.scan.protocol import PLAN_SUBJECT, WRITE_SUBJECT, WriteHead, encode_write
from broker.server.routing.fair_queue import FairQueue
from broker.store.block.codec import BlockBuilder
from broker.subjects import Subscription
from tests.support.cluster_fakes import run, turns

INFO = b"$JS.API.STREAM.INFO.S"
DELETE = b"$JS.API.STREAM.DELETE.S"
NAMES = b"$JS.API.STREAM.NAMES"
GET = b"$JS.API.DIRECT.GET.S.key"
PULL = b"$JS.API.CONSUMER.MSG.NEXT.S.c"
PLAN = PLAN_SUBJECT.encode() + b"S"
WRITE = WRITE_SUBJECT.encode() + b"S"


def _written() -> bytes:
    block = BlockBuilder()
    block.append(b"s", b"", b"row")
    return encode_write(WriteHead(writer="w", epoch=1, row=0)) + block.build()


class Unbounded:
    """A budget of bytes without a limit."""

    def received(self, *_: object) -> None: ...
    def answered(self, *_: object) -> None: ...
    def holding(self, *_: object) -> Unbounded:
        return self

    async def __aenter__(self) -> None: ...
    async def __aexit__(self, *_: object) -> None: ...


class LaggingNode:
    """A node that knows the stream S under group `before`, and under `after` once its table is
    current; 0: not at all."""

    def __init__(
        self, *, before: int = 0, after: int = 0, founded: bool = True, learned: bool = True
    ) -> None:
        self.known: dict[str, Any] = {}
        self.after = after
        self._know(before)
        self.members = SimpleNamespace(founded=asyncio.Event(), learned=asyncio.Event())
        if founded:
            self.members.founded.set()
        if learned:
            self.members.learned.set()
        self.answers: list[bytes] = []  # headers and payload
        self.tasks: list[asyncio.Task[None]] = []
        self.account = Account("A")

    def _know(self, group: int) -> None:
        if group:
            config = SimpleNamespace(allow_direct=True, mirror=None, subject_patterns=(b"s",))
            self.known["S"] = SimpleNamespace(
                name="S", group=group, created_ns=1, subjects_since=1, config=config
            )

    async def barrier(self) -> None:
        self._know(self.after)

    def learn(self) -> None:
        self._know(self.after)
        self.members.learned.set()

    def _publish(
        self, _account: object, _to: bytes, _reply: bytes, head: bytes, body: bytes
    ) -> int:
        self.answers.append(head + body)
        return 1

    def _spawn(self, work: Any, _name: str) -> None:
        self.tasks.append(asyncio.ensure_future(work))

    async def _call_leader(self, _group: int, name: str, *_: Any, **__: Any) -> bytes:
        return b'\0{"config":{}}' if name == "api" else b'{"plan":1}'

    async def _answer(self, *_: Any) -> bytes:
        return json.dumps({"streams": [one.group for one in self.known.values()]}).encode()

    async def _decoded(self, _: Any) -> None:
        return None

    def _direct(self, call: ApiCall, _spawn: object) -> bool:
        if "S" in self.known:
            self.answers.append(b"message")
        return "S" in self.known

    @property
    def _parts(self) -> dict[str, Any]:
        """What both services need."""
        return {
            "router": SimpleNamespace(publish=self._publish),
            "account": lambda _: self.account,
            "calls": SimpleNamespace(call=self._call_leader),
            "spawn": self._spawn,
        }

    def api(self) -> ApiService:
        nothing = cast(Any, SimpleNamespace(audit=lambda *_: None))
        streams = SimpleNamespace(members=self.members, decoded=self._decoded, answer=self._answer)
        pulls = SimpleNamespace(add=lambda _: self.answers.append(b"pulled"))
        return ApiService(
            **self._parts,
            assignments=self._table,
            replicas=cast(Any, SimpleNamespace(get=lambda _: None)),
            domain=b"",
            strict=False,
            clustered=lambda: True,
            requests=cast(Any, pulls),
            meta_requests=cast(Any, SimpleNamespace(barrier=self.barrier)),
            advisories=nothing,
            streams=cast(Any, streams),
            gets=cast(Any, SimpleNamespace(direct=self._direct)),
            budget=cast(Any, Unbounded()),
        )

    def plans(self) -> PlanService:
        nothing = cast(Any, None)
        return PlanService(
            **self._parts,
            turns=FairQueue(),
            lookup=self._lookup,
            mesh=nothing,
            replicas=nothing,
            wait_current=nothing,
            status=nothing,
            member_name=str,
        )

    def writes(self) -> WriteService:
        return WriteService(
            **self._parts,
            turns=FairQueue(),
            lookup=self._lookup,
            level=lambda: WRITERS,
            replica=lambda *_: None,
            bounds=lambda _: None,
            disk_refuses=lambda *_: False,
        )

    @property
    def _table(self) -> Any:
        return SimpleNamespace(get=lambda _, name: self.known.get(name))

    @property
    def _lookup(self) -> StreamLookup:
        return StreamLookup(self._table, cast(Any, self.members), self.barrier)

    def ask(self, subject: bytes) -> bool:
        """Whether somebody responds."""
        if subject in {PLAN, WRITE}:
            service = self.plans() if subject == PLAN else self.writes()
            (sub,) = service.subscriptions(self.account)
            return sub.sink.deliver(
                sub, subject, b"in.1", b"", _written() if subject == WRITE else b""
            )
        api = self.api()
        sub = Subscription(sink=api, account=self.account, subject=subject)
        return api.deliver(sub, subject, b"in.1", b"", b"")

    async def answer(self, subject: bytes) -> dict[str, Any]:
        request = parse_api_subject(subject, domain=b"")
        if request is None:
            self.ask(subject)
            await self.tasks[0]
        else:
            call = ApiCall(self.account, request, subject, b"in.1", b"", b"")
            await self.api()._answer(call)
        return cast(dict[str, Any], json.loads(self.answers[0]))


def answer_of(node: LaggingNode, subject: bytes = INFO) -> dict[str, Any]:
    return asyncio.run(node.answer(subject))


@pytest.mark.parametrize("subject", [INFO, PLAN, WRITE])
def test_a_stream_that_was_created_elsewhere_is_found(subject: bytes) -> None:
    assert "error" not in answer_of(LaggingNode(after=7), subject)


@pytest.mark.parametrize("subject", [INFO, PLAN, WRITE])
def test_a_stream_that_does_not_exist_is_not_found(subject: bytes) -> None:
    assert answer_of(LaggingNode(), subject)["error"]["err_code"] == 10059


@pytest.mark.parametrize("subject", [INFO, PLAN, WRITE, NAMES])
def test_a_node_that_knows_no_streams_yet_is_not_available(subject: bytes) -> None:
    node = LaggingNode(after=7, founded=False, learned=False)
    assert answer_of(node, subject)["error"]["code"] == 503


def test_a_delete_is_about_the_stream_of_the_current_table() -> None:
    assert answer_of(LaggingNode(before=7, after=8), DELETE) == {"streams": [8]}


def test_a_list_after_a_start_has_the_streams_that_were_created_meanwhile() -> None:
    assert answer_of(LaggingNode(after=7, learned=False), NAMES) == {"streams": [7]}


@pytest.mark.parametrize(("subject", "found"), [(GET, b"message"), (PULL, b"pulled")])
def test_a_get_or_a_pull_after_a_start_waits_until_the_table_is_current(
    subject: bytes, found: bytes
) -> None:
    async def test() -> None:
        for after, answer in ((7, found), (0, b"NATS/1.0 503")):
            node = LaggingNode(after=after, learned=False)
            assert node.ask(subject)
            await turns()
            assert not node.answers, "said before the table was known"
            node.learn()
            await node.tasks[0]
            assert node.answers[0].startswith(answer)

    run(test())


@pytest.mark.parametrize(
    ("subject", "told"), [(GET, []), (PULL, [b"NATS/1.0 409 Leadership Change"])]
)
def test_a_pull_is_told_that_the_table_stays_unknown(
    subject: bytes, told: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client repeats a get by itself, but may wait for the end of a pull for ever."""
    monkeypatch.setattr(jetstream_api, "LEADER_WITHIN_S", 0)

    async def test() -> None:
        node = LaggingNode(after=7, learned=False)
        assert node.ask(subject)
        await node.tasks[0]
        assert [answer.partition(b"\r\n")[0] for answer in node.answers] == told

    run(test())


@pytest.mark.parametrize("subject", [GET, PULL])
def test_a_get_or_a_pull_of_an_unknown_stream_has_no_responder(subject: bytes) -> None:
    assert not LaggingNode().ask(subject)
