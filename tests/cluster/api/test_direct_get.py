"""Direct gets of one subject or sequence: the fast path answers like the general one."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from broker.accounts import Account
from broker.cluster.api.direct_get import direct_get, last_of_subject, message_at, sequence_asked
from broker.cluster.api.leader_calls import ApiCall
from broker.cluster.api.message_gets import MessageGets, StartWork
from broker.cluster.peers.rpc import CallRefused
from broker.jetstream.config import StreamConfig
from broker.jetstream.stream.stream import Stream
from broker.server.routing.fair_queue import FairQueue
from broker.server.routing.router import Router
from broker.store.block.codec import BlockDamaged
from broker.store.messages import MessageStore
from broker.subjects import SinkKind, Subscription, finish
from broker.wire import PubRun
from raft import NodeId
from tests.support.server import run

HEADERS = b"NATS/1.0\r\nA: b\r\n\r\n"


@pytest.fixture
def stream() -> Stream:
    config = StreamConfig(name="S", subjects=("k.>",))
    found = Stream(config, created_ns=1, store=MessageStore())
    store = found.store
    store.append(b"k.a", b"", b"old", time_ns=1_000_000_000)
    store.append(b"k.b", HEADERS, b"b", time_ns=1_500_000_000)
    store.append(b"k.a", b"", b"new", time_ns=2_000_000_000)
    store.append(b"k.gone", b"", b"x", time_ns=2_000_000_000)
    store.append(b"k.c", b"", b"", time_ns=2_000_000_000)
    store.append(b"k.c", b"", b"deleted", time_ns=2_000_000_000)
    store.remove(4)
    store.remove(6)
    return found


@pytest.mark.parametrize("subject", ["k.a", "k.b", "k.c", "k.gone", "k.never"])
def test_the_fast_path_answers_like_the_general_one(stream: Stream, subject: str) -> None:
    body = b'{"last_by_subj":"%b"}' % subject.encode()
    general = finish(direct_get(stream, "", b"", body))
    assert [last_of_subject(stream, subject.encode())] == general
    assert finish(direct_get(stream, subject, b"", b"")) == general


@pytest.mark.parametrize("seq", [1, 2, 3, 4, 5, 6, 7, 10**17])
def test_a_get_by_sequence_answers_like_the_general_one(stream: Stream, seq: int) -> None:
    simple, general = b'{"seq":%d}' % seq, b'{"seq": %d}' % seq
    assert sequence_asked(simple) == seq
    assert sequence_asked(general) == 0
    found = finish(direct_get(stream, "", b"", general))
    assert finish(direct_get(stream, "", b"", simple)) == found
    assert [message_at(stream, seq)] == found


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"{}", b'{"seq":}', b'{"seq":0}', b'{"seq":01}', b'{"seq":-1}', b'{"seq":1.0}',
        b'{"seq":1,"batch":2}', b'{"seq":1}}', b'{"seq":1e2}', b'{"seq":9999999999999999999}',
        b'{"seq":1} ', '{"seq":\u0661}'.encode(),
    ],
)  # fmt: skip
def test_other_requests_than_a_plain_sequence_are_parsed(payload: bytes) -> None:
    assert sequence_asked(payload) == 0


def test_direct_get_headers_are_appended_to_those_of_the_message(stream: Stream) -> None:
    assert last_of_subject(stream, b"k.b") == (
        b"NATS/1.0\r\nA: b\r\nNats-Stream: S\r\nNats-Subject: k.b\r\nNats-Sequence: 2\r\n"
        b"Nats-Time-Stamp: 1970-01-01T00:00:01.5Z\r\n\r\n",
        b"b",
    )


def test_a_wildcard_finds_the_last_message_that_matches(stream: Stream) -> None:
    (answer,) = finish(direct_get(stream, "k.*", b"", b""))
    assert b"Nats-Sequence: 5\r\n" in answer[0]


class Client:
    """Receives from the router and records the bytes that would go over the wire."""

    kind = SinkKind.CLIENT
    watchful = False

    def __init__(self, *, headers_ok: bool) -> None:
        self.headers_ok = headers_ok
        self.log: list[tuple[str, int]] = []
        self.wire = b""

    def deliver(self, sub: Any, subject: bytes, reply: bytes, headers: bytes, data: bytes) -> bool:
        self.log.append((subject.decode(), len(headers)))
        return True

    def deliver_encoded(self, sub: Any, data: bytes, *, messages: int, payload_bytes: int) -> bool:
        self.log.append(("bulk", messages))
        self.wire += data
        return True

    deliver_answers = deliver_encoded


def asked(
    stream: Stream, gets: list[tuple[bytes, bytes, bytes]], *, subscribed: bytes = b"in.*",
    headers_ok: bool = True, current: bool = True,
) -> tuple[Client, list[int], list[int]]:  # fmt: skip
    """What the client got, which rows were passed on, which have no responder."""
    account, who = Account("A"), Client(headers_ok=headers_ok)
    sink = cast(Any, who)
    account.subs.insert(Subscription(sink=sink, account=account, subject=subscribed, sid=b"7"))
    group = SimpleNamespace(group=1, config=SimpleNamespace(allow_direct=True))
    replica = SimpleNamespace(stream=stream, reads_are_current=current)
    service = MessageGets(
        node=NodeId(1),
        router=Router(),
        assignments=cast(Any, SimpleNamespace(get=lambda _, name: group if name == "S" else None)),
        replicas=cast(Any, SimpleNamespace(led={1: replica}.get)),
        leader_api=cast(Any, None),
        calls=cast(Any, None),
        disk_failed=lambda: False,
        spawn=lambda *_: None,
    )
    run = PubRun.of([(b"$JS.API.DIRECT.GET." + s, reply, b"", body) for s, reply, body in gets])
    passed: list[int] = []

    def otherwise(row: int) -> bool:
        passed.append(row)
        who.log.append(("passed on", row))
        return run.message(row)[0].startswith(b"$JS.API.DIRECT.GET.S")

    reached, missing = service.answer_run(
        account, run, 0, len(run), deadline=math.inf, otherwise=otherwise
    )
    assert reached == len(run)
    return who, passed, missing


def test_gets_of_a_run_are_answered_in_one_write(stream: Stream) -> None:
    who, passed, missing = asked(
        stream, [(b"S.k.a", b"in.1", b""), (b"S.k.never", b"in.2", b""), (b"S.k.b", b"in.3", b"")]
    )
    assert (who.log, passed, missing) == ([("bulk", 3)], [], [])
    first, second, third = who.wire.split(b"HMSG ")[1:]
    assert first.startswith(b"in.1 7 ")
    assert first.endswith(b"\r\n\r\nnew\r\n")
    assert b"404 Message Not Found" in second
    assert b"A: b\r\n" in third


def test_gets_by_sequence_are_answered_in_the_same_write(stream: Stream) -> None:
    gets = [
        (b"S", b"in.1", b'{"seq":3}'), (b"S", b"in.2", b'{"seq":4}'), (b"S.k.b", b"in.3", b""),
        (b"S", b"in.4", b'{"seq":2}'),
    ]  # fmt: skip
    who, passed, missing = asked(stream, gets)
    assert (who.log, passed, missing) == ([("bulk", 4)], [], [])
    first, second, third, fourth = who.wire.split(b"HMSG ")[1:]
    assert first.startswith(b"in.1 7 ")
    assert b"Nats-Sequence: 3\r\n" in first
    assert first.endswith(b"\r\n\r\nnew\r\n")
    assert b"404 Message Not Found" in second
    assert third.split(b"NATS/1.0")[1] == fourth.split(b"NATS/1.0")[1]


def test_a_damaged_block_leaves_its_get_unanswered_and_answers_the_others(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = stream.store.rows

    def damaged(seq: int) -> Any:
        if seq == 2:
            raise BlockDamaged("simulated damage")
        return rows(seq)

    monkeypatch.setattr(stream.store, "rows", damaged)
    gets = [
        (b"S", b"in.1", b'{"seq":2}'), (b"S", b"in.2", b'{"seq":3}'), (b"S.k.b", b"in.3", b""),
        (b"S.k.a", b"in.4", b""),
    ]  # fmt: skip
    who, passed, missing = asked(stream, gets)
    assert (who.log, passed, missing) == ([("bulk", 2)], [], [])


def test_other_requests_keep_their_order(stream: Stream) -> None:
    gets = [
        (b"S.k.a", b"in.1", b""), (b"S", b"in.2", b'{"seq": 1}'), (b"S.k.*", b"in.3", b""),
        (b"T.k.a", b"in.4", b""), (b"S.k.a", b"", b""), (b"S.k.a", b"in.6", b""),
    ]  # fmt: skip
    who, passed, missing = asked(stream, gets)
    assert (passed, missing) == ([1, 2, 3, 4], [3])
    assert who.log[0] == who.log[-1] == ("bulk", 1)


def test_replies_without_a_common_subscription_are_sent_one_by_one(stream: Stream) -> None:
    gets = [(b"S.k.a", b"in.1", b""), (b"S.k.a", b"in.2", b"")]
    who, _, _ = asked(stream, gets, subscribed=b"in.1")
    assert [name for name, _ in who.log] == ["in.1"]


def test_clients_without_header_support_get_the_payload_only(stream: Stream) -> None:
    who, _, _ = asked(stream, [(b"S.k.a", b"in.1", b"")], headers_ok=False)
    assert who.wire == b"MSG in.1 7 3\r\nnew\r\n"


def test_gets_are_passed_on_when_reads_may_be_stale(stream: Stream) -> None:
    who, passed, _ = asked(stream, [(b"S.k.a", b"in.1", b"")], current=False)
    assert passed == [0]
    assert who.log == [("passed on", 0)]


@pytest.mark.parametrize(("led_last", "answers"), [(True, 1), (False, 0)])
def test_the_only_copy_on_a_failed_disk_answers_only_if_its_log_was_applied(
    stream: Stream, led_last: bool, answers: int
) -> None:
    """A replica that was opened again may not have applied what it had acknowledged before."""
    config = SimpleNamespace(allow_direct=True)
    group = SimpleNamespace(name="S", group=1, config=config, holders={1})
    replica = SimpleNamespace(
        stream=stream, leading=None, reads_are_current=False, led_last=led_last
    )
    sent: list[bytes] = []
    router = SimpleNamespace(publish=lambda *message: sent.append(message[1]))
    service = MessageGets(
        node=NodeId(1),
        router=cast(Any, router),
        assignments=cast(Any, SimpleNamespace(get=lambda *_: group)),
        replicas=cast(Any, SimpleNamespace(get=lambda _: replica)),
        leader_api=cast(Any, None),
        calls=cast(Any, None),
        disk_failed=lambda: True,
        spawn=lambda *_: None,
    )
    request = SimpleNamespace(stream="S", rest="k.a")
    call = ApiCall(Account("A"), cast(Any, request), b"", b"in.1", b"", b"")
    asked_leader: list[Any] = []
    assert service.direct(call, asked_leader.append)
    assert (len(sent), len(asked_leader)) == (answers, 1 - answers)


@pytest.mark.parametrize(("leader_has", "found"), [(5, [b"new"]), (6, []), (4, []), (None, [])])
def test_a_follower_answers_if_it_has_applied_as_much_as_the_leader(
    stream: Stream, leader_has: int | None, found: list[bytes]
) -> None:
    stream.applied = 5
    group = SimpleNamespace(
        name="S", group=1, config=SimpleNamespace(allow_direct=True), holders={1, 2}
    )
    replica = SimpleNamespace(stream=stream, leading=None, reads_are_current=False)
    sent: list[bytes] = []
    forwarded: list[str] = []

    async def call_leader(_group: int, method: str, *_: object, **__: object) -> bytes:
        forwarded.append(method)
        return msgspec.msgpack.encode([(b"", b"from the leader")])

    async def ask(_leader: NodeId, method: str, body: bytes, **_: object) -> bytes:
        assert (method, msgspec.msgpack.decode(body)) == ("read index", 1)
        if leader_has is None:
            raise CallRefused("read index: unknown method")  # as an older version answers
        return msgspec.msgpack.encode(leader_has)

    async def test() -> None:
        calls = SimpleNamespace(
            leader=lambda _: NodeId(2), call=call_leader, rpc=SimpleNamespace(call=ask)
        )
        service = MessageGets(
            node=NodeId(1),
            router=cast(Any, SimpleNamespace(publish=lambda *message: sent.append(message[4]))),
            assignments=cast(Any, SimpleNamespace(get=lambda *_: group)),
            replicas=cast(Any, SimpleNamespace(get=lambda _: replica)),
            leader_api=cast(Any, SimpleNamespace(turns=FairQueue())),
            calls=cast(Any, calls),
            disk_failed=lambda: False,
            spawn=lambda work, _: asyncio.ensure_future(work),
        )
        request = SimpleNamespace(stream="S", rest="k.a")
        call = ApiCall(Account("A"), cast(Any, request), b"", b"in.1", b"", b"")
        work: list[StartWork] = []
        assert service.direct(call, work.append)
        await work[0]()

    run(test())
    assert sent == (found or [b"from the leader"])
    assert forwarded == ([] if found else ["direct"])
