"""Calls between nodes: answers, refusals, timeouts, lost links."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable

import pytest

from broker.cluster.peers import rpc as module
from broker.cluster.peers.rpc import CallFailed, CallRefused, Rpc
from raft import NodeId
from tests.support.cluster_fakes import run, turns

A, B = NodeId(1), NodeId(2)


class Pair:
    """Two nodes. Frames wait until the test passes them on."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.tasks = tasks
        self.connected = True
        self.frames: deque[tuple[NodeId, NodeId, bytes]] = deque()
        self.a, self.b = self._rpc(A), self._rpc(B)

    def _rpc(self, node: NodeId) -> Rpc:
        def send(to: NodeId, frame: bytes) -> bool:
            if self.connected:
                self.frames.append((node, to, frame))
            return self.connected

        return Rpc(node, send, self._spawn)

    def _spawn(self, work: Awaitable[None], name: str) -> object:
        return self.tasks.create_task(work, name=name)  # type: ignore[arg-type]

    def ask(self, name: str, body: bytes = b"", *, timeout_s: float = 5.0) -> asyncio.Task[bytes]:
        return self.tasks.create_task(self.a.call(B, name, body, timeout_s=timeout_s))

    async def settle(self) -> None:
        await turns()
        while self.frames:
            source, to, frame = self.frames.popleft()
            (self.a if to == A else self.b).received(source, frame)
            await turns()


async def echo(peer: NodeId, body: bytes) -> bytes:
    return b"%d said %b" % (peer, body)


def test_a_call_is_answered() -> None:
    async def test() -> None:
        async with asyncio.TaskGroup() as tasks:
            pair = Pair(tasks)
            pair.b.register("echo", echo)
            asked = [pair.ask("echo", b"%d" % i) for i in range(3)]
            await pair.settle()
            assert [task.result() for task in asked] == [b"1 said 0", b"1 said 1", b"1 said 2"]
            assert not pair.a._calls
            assert pair.b._served == 0

    run(test())


def test_answers_may_arrive_in_any_order() -> None:
    async def test() -> None:
        async with asyncio.TaskGroup() as tasks:
            pair = Pair(tasks)
            gates = {b"first": asyncio.Event(), b"second": asyncio.Event()}

            async def slow(_: NodeId, body: bytes) -> bytes:
                await gates[body].wait()
                return body

            pair.b.register("slow", slow)
            first, second = pair.ask("slow", b"first"), pair.ask("slow", b"second")
            await pair.settle()
            gates[b"second"].set()
            await pair.settle()
            assert second.result() == b"second"
            assert not first.done()
            gates[b"first"].set()
            await pair.settle()
            assert first.result() == b"first"

    run(test())


def test_a_call_to_the_own_node_needs_no_link() -> None:
    async def test() -> None:
        async with asyncio.TaskGroup() as tasks:
            pair = Pair(tasks)
            pair.connected = False
            pair.a.register("echo", echo)
            assert await pair.a.call(A, "echo", b"me") == b"1 said me"

    run(test())


@pytest.mark.parametrize("to", [A, B])
def test_no_answer_in_time_is_indefinite(to: NodeId) -> None:
    async def test() -> None:
        async with asyncio.TaskGroup() as tasks:
            pair = Pair(tasks)
            never = asyncio.Event()

            async def wait(_: NodeId, _body: bytes) -> bytes:
                await never.wait()
                return b"late"

            for rpc in (pair.a, pair.b):
                rpc.register("wait", wait)
            asked = tasks.create_task(_reason(pair.a.call(to, "wait", b"", timeout_s=0.001)))
            await pair.settle()
            failure = await asked
            assert type(failure) is CallFailed
            assert "wait" in str(failure)
            never.set()  # the late answer is ignored
            await pair.settle()
            assert not pair.a._calls

    run(test())


async def _reason(call: Awaitable[bytes]) -> CallFailed:
    with pytest.raises(CallFailed) as failed:
        await call
    return failed.value


@pytest.mark.parametrize(
    ("raised", "kind", "text"),
    [
        (CallRefused("not the leader"), CallRefused, "not the leader"),
        (CallFailed("lost on the way"), CallFailed, "lost on the way"),
        (KeyError("oops"), CallFailed, "internal error"),
        (TimeoutError(), CallFailed, "internal error"),
    ],
)
def test_what_a_method_raises_reaches_the_caller(
    raised: Exception, kind: type, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """CallRefused means that nothing was done; any other error is indefinite."""

    async def test() -> None:
        async with asyncio.TaskGroup() as tasks:
            pair = Pair(tasks)

            async def fail(_: NodeId, _body: bytes) -> bytes:
                raise raised

            pair.b.register("fail", fail)
            asked = tasks.create_task(_reason(pair.a.call(B, "fail", b"")))
            with caplog.at_level(logging.ERROR):
                await pair.settle()
            failure = await asked
            assert (type(failure), str(failure)) == (kind, text)
            assert pair.b._served == 0

    run(test())


def test_an_unknown_method_is_refused() -> None:
    async def test() -> None:
        async with asyncio.TaskGroup() as tasks:
            pair = Pair(tasks)
            asked = tasks.create_task(_reason(pair.a.call(B, "none", b"")))
            await pair.settle()
            failure = await asked
            assert type(failure) is CallRefused
            assert str(failure) == "none: unknown method"

    run(test())


def test_a_peer_that_is_not_connected_refuses_at_once() -> None:
    async def test() -> None:
        async with asyncio.TaskGroup() as tasks:
            pair = Pair(tasks)
            pair.connected = False
            with pytest.raises(CallRefused, match="not connected"):
                await pair.a.call(B, "echo", b"")
            assert not pair.a._calls

    run(test())


def test_a_lost_link_fails_the_calls_over_it_alone() -> None:
    async def test() -> None:
        async with asyncio.TaskGroup() as tasks:
            pair = Pair(tasks)
            asked = tasks.create_task(_reason(pair.a.call(B, "echo", b"")))
            other = tasks.create_task(_reason(pair.a.call(NodeId(3), "echo", b"")))
            await turns()
            pair.a.peer_lost(B)
            failure = await asked
            assert type(failure) is CallFailed  # it may have been performed before the link broke
            assert not other.done()
            pair.a.peer_lost(NodeId(3))
            await other

    run(test())


def test_only_the_node_that_was_asked_may_answer() -> None:
    async def test() -> None:
        async with asyncio.TaskGroup() as tasks:
            pair = Pair(tasks)
            pair.b.register("echo", echo)
            asked = pair.ask("echo", b"x")
            await turns()
            source, _, question = pair.frames.popleft()
            pair.b.received(source, question)
            await turns()
            _, _, answer = pair.frames.popleft()
            pair.a.received(NodeId(7), answer)
            await turns()
            assert not asked.done()
            for _ in range(2):  # a repeated answer is ignored
                pair.a.received(B, answer)
            await turns()
            assert asked.result() == b"1 said x"
            pair.a.received(B, answer)

    run(test())


def test_both_sides_bound_the_outstanding_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SERVED_MAX", 2)
    monkeypatch.setattr(module, "CALLS_MAX", 3)

    async def test() -> None:
        async with asyncio.TaskGroup() as tasks:
            pair = Pair(tasks)
            gate = asyncio.Event()

            async def wait(_: NodeId, _body: bytes) -> bytes:
                await gate.wait()
                return b"done"

            pair.b.register("wait", wait)
            served = [pair.ask("wait") for _ in range(2)]
            await turns()
            third = tasks.create_task(_reason(pair.a.call(B, "wait", b"")))
            await turns()
            with pytest.raises(CallRefused, match="too many"):
                await pair.a.call(B, "wait", b"")
            await pair.settle()
            failure = await third
            assert (type(failure), str(failure)) == (CallRefused, "wait: too busy")
            gate.set()
            await pair.settle()
            assert [task.result() for task in served] == [b"done", b"done"]

    run(test())


def test_a_cancelled_call_leaves_nothing_behind() -> None:
    async def test() -> None:
        async with asyncio.TaskGroup() as tasks:
            pair = Pair(tasks)
            pair.b.register("echo", echo)
            asked = pair.ask("echo")
            await turns()
            asked.cancel()
            await pair.settle()
            assert asked.cancelled()
            assert not pair.a._calls

    run(test())


@pytest.mark.parametrize(
    "frame",
    [b"", b"\x00" * 9, b"\x09" + b"\x00" * 9, b"\x00" * 9 + b"\x04abc"],
    ids=["empty", "short", "unknown kind", "name beyond the end"],
)
def test_damaged_frames_are_refused(frame: bytes) -> None:
    rpc = Rpc(A, lambda _to, _frame: True, lambda _work, _name: None)
    with pytest.raises(ValueError, match="rpc frame"):
        rpc.received(B, frame)
