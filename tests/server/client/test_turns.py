"""Time slices: other clients are served between the operations of one, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from broker.accounts import Account
from broker.server.client import operations
from broker.server.routing import fan_out, router
from broker.server.routing.fair_queue import FairQueue
from broker.server.routing.router import Router
from broker.server.server import Server
from broker.subjects import SinkKind, SubjectTree, Subscription, tree
from broker.wire import PubRun
from tests.server.client.test_tls import TLS, client_context
from tests.support.server import EMPTY_CONNECT, RawClient, run, running, until


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every reading of the clock finds the turn over."""
    monkeypatch.setattr(router, "TURN_S", -1.0)
    monkeypatch.setattr(operations, "TURN_S", -1.0)
    monkeypatch.setattr(router, "LOOK_EVERY", 2)
    monkeypatch.setattr(router, "PIECE_MAX", 3)
    monkeypatch.setattr(fan_out, "LOOK_EVERY", 1)
    monkeypatch.setattr(operations, "LOOK_MASK", 1)


MIXED = b"".join(
    [
        b"SUB a.* 1\r\nSUB a.> 2\r\nSUB b q 3\r\nUNSUB 2 7\r\n",
        *(b"PUB a.%d 1\r\n%d\r\n" % (i, i) for i in range(9)),
        b"PUB b 1\r\nx\r\n" * 20,
        b"PING\r\n" * 5,
        b"PUB nobody back 0\r\n\r\n" * 3,
        b"UNSUB 1\r\nPUB a.x 0\r\n\r\nSUB a.x 4\r\nPUB a.x 0\r\n\r\n" * 4,
    ]
)


async def answers(server: Server, *, verbose: bool) -> bytes:
    line = b'CONNECT {"verbose":%b,"headers":true,"no_responders":true}\r\nSUB back 9\r\n'
    client = await RawClient.open(server, connect=line % (b"true" if verbose else b"false"))
    client.send(MIXED + b"PUB end 0\r\n\r\nSUB end 99\r\nPUB end 0\r\n\r\n")
    got = b""
    while not got.endswith(b"MSG end 99 0\r\n\r\n"):
        got += await client.line()
    client.close()
    return got


@pytest.mark.parametrize("verbose", [False, True])
def test_turns_do_not_change_the_output(monkeypatch: pytest.MonkeyPatch, *, verbose: bool) -> None:
    async def test() -> None:
        async with running() as server:
            expected = await answers(server, verbose=verbose)
            impatient(monkeypatch)
            got = await answers(server, verbose=verbose)
            if verbose:  # a segment is answered as a whole: +OK may come before or after it
                assert got.count(b"+OK") == expected.count(b"+OK")
                got, expected = (text.replace(b"+OK\r\n", b"") for text in (got, expected))
            assert got == expected

    run(test())


def test_the_loop_runs_between_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with running() as server:
            client = await RawClient.open(server)
            client.send(b"".join(b"SUB x %d\r\n" % i for i in range(10)))
            await client.flush()
            impatient(monkeypatch)
            turns = 0

            def turn() -> None:
                nonlocal turns
                turns += 1
                asyncio.get_running_loop().call_soon(turn)

            turn()
            client.send(b"PUB x 0\r\n\r\n" * 200)
            await client.flush()
            [found] = server.connections.values()
            assert found.client.out_msgs == 2000
            assert turns >= 200
            client.close()

    run(test())


def test_everything_a_closed_client_sent_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        async with running() as server, running(tls=TLS) as secure:
            for one in (server, secure):
                listening = one.account("$G").subs
                sink = Counting()
                listening.insert(Subscription(sink, one.account("$G"), b"x.>"))
                with monkeypatch.context() as patched:
                    impatient(patched)
                    await send_and_leave(one, secure=one is secure)
                    await until(lambda sink=sink: sink.rows >= 500)
                    await until(lambda one=one: not one.connections)
                assert sink.rows == 500

    run(test())


class Counting:
    """A sink that counts."""

    kind = SinkKind.STREAM

    def __init__(self) -> None:
        self.rows = 0

    def deliver(self, *_: object) -> bool:
        self.rows += 1
        return True

    def deliver_run(
        self, sub: Subscription, run: PubRun, start: int, stop: int, publisher: object
    ) -> bool:
        self.rows += stop - start
        return True


async def send_and_leave(server: Server, *, secure: bool) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await reader.readline()
    if secure:
        await writer.start_tls(client_context(), server_hostname="localhost")
    writer.write(EMPTY_CONNECT + b"".join(b"PUB x.%d 0\r\n\r\n" % i for i in range(500)))
    writer.close()
    await writer.wait_closed()


def test_a_violation_is_reported_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        async with running() as server:
            client = await RawClient.open(server)
            client.send(b"SUB x 1\r\n")
            await client.flush()
            impatient(monkeypatch)
            client.send(b"PUB x 0\r\n\r\n" * 50 + b"NONSENSE\r\n")
            got = await client.end()
            assert got.count(b"MSG x 1 0") == 50
            assert got.endswith(b"-ERR 'Unknown Protocol Operation'\r\n")

    run(test())


class Publisher:
    """What the router needs of a connection."""

    cid = 1
    echo = True
    no_responders = guarded = closed = False
    groups = None

    def __init__(self, account: Account) -> None:
        self.account = account

    def skips(self, sink: object) -> bool:
        return False


def test_a_run_continues_where_its_turn_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch)
    monkeypatch.setattr(fan_out, "LOOK_EVERY", 2)
    account, sink = Account("A"), Counting()
    for _ in range(2):
        account.subs.insert(Subscription(sink, account, b"a"))
    messages = PubRun.of([(b"a", b"", b"", b"%d" % i) for i in range(10)])
    rows = [0]
    while rows[-1] < 10:
        rows.append(Router().publish_run(Publisher(account), messages, rows[-1]))
    assert rows == list(range(11))  # two subscribers: a piece has one row
    assert sink.rows == 20


def test_one_message_for_many_subscriptions_takes_several_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was one step: 50 to 120 ms for 100,000 subscriptions of one connection."""
    impatient(monkeypatch)
    monkeypatch.setattr(fan_out, "LOOK_EVERY", 16)
    account, sinks = Account("A"), [Counting() for _ in range(100)]
    subs = [Subscription(sink, account, b"a") for sink in sinks]
    for sub in subs:
        account.subs.insert(sub)
    messages = PubRun.of([(b"a", b"", b"", b"%d" % i) for i in range(3)])
    routing, publisher, row, turns = Router(), Publisher(account), 0, 0
    while row < 3:
        before = sum(sink.rows for sink in sinks)
        row = routing.publish_run(publisher, messages, row)
        assert sum(sink.rows for sink in sinks) - before <= 16
        turns += 1
        if turns == 2:  # what changes meanwhile is not for the message under way
            account.subs.insert(Subscription(late := Counting(), account, b"a"))
            for sub in subs[2:]:
                account.subs.remove(sub)
    assert turns >= 7
    assert [sink.rows for sink in sinks] == [3, 3] + [1] * 98
    assert late.rows == 2
    assert not routing._unfinished


def test_large_messages_are_counted_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch)
    monkeypatch.setattr(fan_out, "LOOK_EVERY", 16)
    account, sink = Account("A"), Counting()
    for _ in range(20):
        account.subs.insert(Subscription(sink, account, b"a"))
    large = PubRun.of([(b"a", b"", b"", bytes(fan_out.LOOK_BYTES))])
    Router().publish_run(Publisher(account), large, 0)
    assert sink.rows == 1


def test_a_publisher_that_is_gone_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch)
    account, sink, routing = Account("A"), Counting(), Router()
    for _ in range(3):
        account.subs.insert(Subscription(sink, account, b"a"))
    message = PubRun.of([(b"a", b"", b"", b"")])
    gone, other = Publisher(account), Publisher(account)
    assert routing.publish_run(gone, message, 0) == 0
    gone.closed = True
    assert routing.publish_run(other, message, 0) == 0
    assert list(routing._unfinished) == [other]


def test_the_cache_of_wide_matches_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "CACHE_WEIGHT_MAX", 1000)
    table, sink = SubjectTree(), Counting()
    for _ in range(100):
        table.insert(Subscription(sink, Account("A"), b">", queue=b"q"))
    for i in range(500):
        assert table.match(b"x.%d" % i).weight == 100
    assert table.cache_size < 30  # two generations of about ten


def test_local_queue_members_are_cached() -> None:
    class Client(Counting):
        kind = SinkKind.CLIENT

    table = SubjectTree()
    here, there = Client(), Counting()
    for sink in (here, there, here):
        table.insert(Subscription(sink, Account("A"), b"a", queue=b"q"))
    table.insert(Subscription(there, Account("A"), b"a", queue=b"other"))
    found = table.match(b"a")
    assert [[sub.sink for sub in pool] for pool in found.local_queues()] == [[here, here]]
    assert found.local_queues() is found.local_queues()


def test_a_client_that_waits_for_its_turn_is_paused_when_it_sends_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Most clients send nothing before they have their answer: a pause would only cost."""

    async def test() -> None:
        async with running() as server:
            client = await RawClient.open(server)
            await client.flush()
            (sink,) = server.account("$G").connections.values()
            socket = cast(Any, sink).pause_reading.__self__
            waiting: list[Callable[[], None]] = []
            monkeypatch.setattr(FairQueue, "exhausted", lambda *_: True)
            monkeypatch.setattr(FairQueue, "wait", lambda _, act, *__: waiting.append(act))
            client.send(b"PING\r\n")
            await until(lambda: len(waiting) == 1)
            assert socket.reading_pauses == 0
            client.send(b"PING\r\nPING\r\n")
            await until(lambda: socket.reading_pauses == 1)
            monkeypatch.setattr(FairQueue, "exhausted", lambda *_: False)
            while waiting:
                waiting.pop(0)()
            assert socket.reading_pauses == 0
            answers = 0
            while answers < 3:
                answers += (await client.line()) == b"PONG\r\n"
            monkeypatch.setattr(FairQueue, "exhausted", lambda *_: True)
            client.send(b"PUB x %d\r\n" % operations.LARGE_CHUNK + bytes(operations.LARGE_CHUNK))
            await until(lambda: waiting)
            assert socket.reading_pauses == 1  # it has more to send
            client.close()

    run(test())
