"""What a client may send to a writer's subject, and what a node keeps for it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from broker.cluster.api import write_batches as module
from broker.cluster.api.write_batches import WriteService, _parsed
from broker.cluster.peers.rpc import CallRefused
from broker.jetstream.commands.publish_entry import NO_SPACE
from broker.jetstream.commands.writer_entry import WriterMark, read_writer_entry
from broker.jetstream.errors import JetStreamError
from broker.jetstream.publish.writers import WriterAnswer
from broker.server.routing.fair_queue import FairQueue
from broker.store.block.codec import Block, BlockBuilder
from broker.subjects import finish
from broker.subjects.steps import STEP_ITEMS
from raft import GroupId, NodeId
from raft.host.group import GroupStopped


def block(*subjects: bytes) -> bytes:
    builder = BlockBuilder()
    for subject in subjects:
        builder.append(subject, b"", b"x")
    return builder.build()


def service(**parts: Any) -> WriteService:
    names = ("router", "account", "lookup", "level", "replica", "calls", "bounds", "disk_refuses")
    nothing = cast(Any, None)
    defaults = {"spawn": nothing, "turns": FairQueue()}
    return WriteService(**dict.fromkeys(names, nothing), **(defaults | parts))


@pytest.mark.parametrize(
    "head",
    [
        b'{"writer":"w","epoch":%d,"row":0}' % 2**64,
        b'{"writer":"w","epoch":0,"row":%d}' % 2**70,
        b'{"writer":"w","epoch":0,"row":%d}' % (2**64 - 1),
        b'{"writer":"w","epoch":-1,"row":0}',
        b'{"writer":"","epoch":0,"row":0}',
        b'{"writer":"%s","epoch":0,"row":0}' % ("\U0001f600" * 65).encode(),  # 260 bytes
        b'{"writer":"w","epoch":0,"row":0,"more":' + b"[" * 100_000,
        b"\xff",
    ],
)
def test_a_request_with_a_wrong_head_is_refused(head: bytes) -> None:
    with pytest.raises(JetStreamError):
        _parsed(head + b"\n" + block(b"a"))


def test_remembered_subjects_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CAPTURED_BYTES_MAX", 50_000)
    writes = service()
    for group in range(40):
        config = SimpleNamespace(subject_patterns=(b">",))
        assignment = cast(Any, SimpleNamespace(group=group, subjects_since=1, config=config))
        subjects = [b"s%d.%s" % (at, b"x" * 1000) for at in range(10)]
        finish(writes._check_subjects(Block(block(*subjects)), assignment, None))
        kept = sum(len(one) for known in writes.captured.values() for one in known)
        assert kept <= 50_000 + 10 * 1100


def test_subjects_are_checked_in_steps() -> None:
    """Those of the stream, those of the block that are new, and those that the user may use."""

    class Rules:
        def allows(self, _: bytes) -> bool:
            return True

    writes = service()
    config = SimpleNamespace(subject_patterns=tuple(b"p%d.*" % at for at in range(1000)))
    assignment = cast(Any, SimpleNamespace(group=1, subjects_since=1, config=config))
    written = Block(block(*(b"p1.%d" % at for at in range(1000))))
    steps = sum(1 for _ in writes._check_subjects(written, assignment, cast(Any, Rules())))
    assert steps == 1 + 3 * -(-1000 // STEP_ITEMS)
    assert sum(1 for _ in writes._check_subjects(written, assignment, None)) == 1


def test_blocks_of_an_account_do_not_overtake_each_other() -> None:
    called: list[int] = []

    class Calls:
        async def call(self, _group: int, _name: str, question: bytes, **_: object) -> bytes:
            called.append(msgspec.msgpack.decode(question)[2][2])
            return b"{}"

    async def find(*_: object) -> Any:
        config = SimpleNamespace(subject_patterns=(b">",), mirror=None)
        return SimpleNamespace(group=1, subjects_since=1, config=config, name="S")

    async def work() -> None:
        tasks: list[asyncio.Task[None]] = []
        writes = service(spawn=lambda one, _: tasks.append(asyncio.ensure_future(one)))
        writes.lookup, writes.calls = cast(Any, SimpleNamespace(find=find)), cast(Any, Calls())
        writes.level, writes.disk_refuses = (lambda: 99), (lambda *_: False)
        writes.replica = lambda *_: None  # the leader is another node
        for row in range(20):
            subjects = [b"s.%d.%d" % (row, at) for at in range(20_000 if row % 4 == 0 else 1)]
            head = b'{"writer":"w","epoch":0,"row":%d}\n' % row
            body = head + block(*subjects)
            asked = SimpleNamespace(account="A", stream="S", reply=b"", body=body, rules=None)
            writes.take(cast(Any, asked))
        await asyncio.gather(*tasks)
        assert not writes.held
        assert not writes.order

    asyncio.run(work())
    assert called == list(range(20))


def test_many_small_requests_count_against_the_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_BYTES_MAX", 64 * 1024)
    answers: list[bytes] = []
    router = SimpleNamespace(publish=lambda *words: answers.append(words[-1]))
    begun: list[Any] = []
    writes = service(spawn=lambda work, _: begun.append(work))
    writes.router, writes.account = cast(Any, router), cast(Any, lambda name: name)
    asked = cast(Any, SimpleNamespace(account="A", reply=b"in.1", body=b"{}"))
    for _ in range(1000):
        writes.take(asked)
    assert len(begun) < 64
    assert len(answers) == 1000 - len(begun)
    for work in begun:
        work.close()


def test_a_leader_that_cannot_propose_refuses_the_call_of_another_node() -> None:
    """The caller tries again then. Anything else would be logged as a failure of the code."""

    class StoppedReplica:
        is_leading = True
        stream = SimpleNamespace(dedup=SimpleNamespace(overfull=False))

        def stamp(self) -> int:
            return 1

        def propose_raw(self, _data: bytes) -> object:
            raise GroupStopped(GroupId(7), "the disk is full")

    writes = service()
    writes.replica = cast(Any, lambda *_: StoppedReplica())
    writes.bounds = lambda _: None
    asked = msgspec.msgpack.encode(("A", "S", WriterMark("w", 0, 0), block(b"a")))
    with pytest.raises(CallRefused, match="the disk is full"):
        asyncio.run(writes._serve(NodeId(1), asked))


def test_a_stream_that_remembers_too_long_ids_takes_no_more() -> None:
    proposed: list[bytes] = []

    class FullReplica:
        is_leading = True
        stream = SimpleNamespace(dedup=SimpleNamespace(overfull=True))

        def stamp(self) -> int:
            return 1

        async def propose_raw(self, data: bytes) -> object:
            proposed.append(data)
            return WriterAnswer()

    writes = service()
    writes.replica = cast(Any, lambda *_: FullReplica())
    asked = msgspec.msgpack.encode(("A", "S", WriterMark("w", 0, 0), block(b"a")))
    asyncio.run(writes._serve(NodeId(1), asked))
    assert read_writer_entry(proposed[0])[1] == NO_SPACE
