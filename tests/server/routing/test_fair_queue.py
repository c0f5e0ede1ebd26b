"""A connection that used its time slice waits for the others, and its socket is not read."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from types import SimpleNamespace

import pytest

from broker.server.client import operations
from broker.server.routing import fair_queue, router
from broker.server.routing.fair_queue import FairQueue
from broker.subjects import PublishingConnection, SinkKind, Steps, Subscription
from broker.wire import PubRun
from tests.support.server import RawClient, run, running, until


class LoopTurns:
    """Counts the turns of the loop while it is used."""

    def __init__(self) -> None:
        self.count = 0
        self._handle: asyncio.Handle | None = None

    def __enter__(self) -> LoopTurns:
        self._next()
        return self

    def _next(self) -> None:
        self.count += 1
        self._handle = asyncio.get_running_loop().call_soon(self._next)

    def __exit__(self, *_: object) -> None:
        assert self._handle is not None
        self._handle.cancel()


class Witness:
    """A sink that records which client was served in which turn."""

    kind = SinkKind.STREAM

    def __init__(self, turns: LoopTurns) -> None:
        self.turns = turns
        self.seen: list[tuple[int, int]] = []
        self.rows = 0

    def deliver(self, *_: object) -> bool:
        return True

    def deliver_run(
        self, sub: Subscription, run: PubRun, start: int, stop: int, publisher: PublishingConnection
    ) -> bool:
        self.rows += stop - start
        self.seen.append((self.turns.count, publisher.cid))
        return True


def spin(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


@pytest.mark.parametrize(("turn_s", "turns_needed"), [(-1.0, 3), (60.0, 1)])
def test_a_turn_carries_out_one_time_slice(
    monkeypatch: pytest.MonkeyPatch, turn_s: float, turns_needed: int
) -> None:
    async def test() -> None:
        monkeypatch.setattr(fair_queue, "TURN_S", turn_s)
        waiting, done = FairQueue(), []
        with LoopTurns() as turns:
            for name in "abc":
                waiting.wait(lambda name=name: done.append((name, turns.count)))
            await until(lambda: len(done) == 3)
        assert [name for name, _ in done] == ["a", "b", "c"]
        assert len({at for _, at in done}) == turns_needed

    run(test())


def test_a_callback_that_raises_does_not_stop_the_others() -> None:
    async def test() -> None:
        waiting, done, raised = FairQueue(), [], []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: raised.append(context["exception"]))

        def fail() -> None:
            raise ValueError

        for act in (fail, lambda: done.append(1)):
            waiting.wait(act)
        await until(lambda: done)
        assert [type(error) for error in raised] == [ValueError]

    run(test())


def test_an_account_with_many_clients_gets_no_more_turns_than_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Costs are counted by a clock that each callback moves, not by the machine's."""
    now = 0.0
    monkeypatch.setattr(fair_queue, "time", SimpleNamespace(perf_counter=lambda: now))

    async def test() -> None:
        queue, order = FairQueue(), []

        def work(name: str, cost_s: float) -> None:
            nonlocal now
            order.append(name)
            now += cost_s

        for client in range(40):
            for _ in range(5):
                queue.wait(lambda c=client: work(f"busy {c}", 0.004), "busy", client)
        for _ in range(10):
            queue.wait(lambda: work("quiet", 0.004), "quiet", 1)
        for _ in range(40):
            queue.wait(lambda: work("cheap", 0.001), "cheap", 1)
        await until(lambda: len(order) == 250)
        part = order[:60]
        assert part.count("quiet") == 10, "a third of the time"
        assert part.count("cheap") == 40, "the same time, four times as many turns"
        busy = [name for name in order if name.startswith("busy")]
        assert len(set(busy[:40])) == 40, "every client of the account once, then again"

    run(test())


def test_work_in_steps_leaves_the_loop_to_others() -> None:
    async def test() -> None:
        queue, done = FairQueue(), []

        def steps(count: int) -> Steps[int]:
            for at in range(count):
                done.append(at)
                spin(fair_queue.STEPS_S)
                yield
            return count

        with LoopTurns() as turns:
            assert await queue.run(steps(30)) == 30
            assert turns.count > 30 * fair_queue.STEPS_S / (2 * fair_queue.TURN_S)
        assert await queue.run(steps(0)) == 0

    run(test())


def test_work_in_steps_raises_and_is_closed_when_cancelled() -> None:
    async def test() -> None:
        queue, closed = FairQueue(), []

        def fail() -> Steps[None]:
            for _ in range(1000):
                yield
            raise ValueError("the last step")

        def endless() -> Steps[None]:
            try:
                while True:
                    yield
            finally:
                closed.append(True)

        with pytest.raises(ValueError, match="the last step"):
            await queue.run(fail())
        task = asyncio.ensure_future(queue.run(endless()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert closed

    run(test())


def test_refused_work_is_freed_at_once() -> None:
    """Held in cycles until a garbage collection, refused requests of 1 MB took 400 MB."""

    class Body:
        pass

    async def test() -> None:
        queue, bodies = FairQueue(), []

        def refused() -> Steps[None]:
            body = Body()
            bodies.append(weakref.ref(body))
            for _ in range(3):
                spin(fair_queue.STEPS_S)
                yield
            raise ValueError("the last step")

        def accepted() -> Steps[Body]:
            body = Body()
            bodies.append(weakref.ref(body))
            for _ in range(3):
                spin(fair_queue.STEPS_S)
                yield
            return body

        gc.disable()
        try:
            with pytest.raises(ValueError, match="the last step"):
                await queue.run(refused())
            await queue.run(accepted())
            await asyncio.sleep(0)
            assert [body() for body in bodies] == [None, None]
        finally:
            gc.enable()

    run(test())


def test_a_client_with_slow_operations_ends_its_turn_between_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between 64 of them, SUBs of 900 tokens held the loop for 0.2 s."""

    async def test() -> None:
        async with running() as server:
            client = await RawClient.open(server)
            await client.flush()
            ended = []
            wait = server.turns.wait
            monkeypatch.setattr(
                FairQueue,
                "wait",
                staticmethod(lambda *given: ended.append(given) or wait(*given)),
            )
            monkeypatch.setattr(operations, "TURN_S", -1.0)
            client.send(b"".join(b"SUB a.%d %d\r\n" % (i, i + 10) for i in range(20)))
            await client.flush()
            assert len(ended) >= 19
            client.close()

    run(test())


def test_a_quiet_account_is_served_before_a_busy_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """All clients of an account that has used its share of the turn queue, whatever they send."""

    async def test() -> None:
        async with running() as server:
            client = await RawClient.open(server)
            await client.flush()
            turns = server.turns
            waited: list[object] = []
            wait = turns.wait

            def watched(act: object, account: object = None, connection: object = None) -> None:
                waited.append(account)
                wait(act, account, connection)  # type: ignore[arg-type]

            monkeypatch.setattr(FairQueue, "wait", staticmethod(watched))
            monkeypatch.setattr(FairQueue, "exhausted", lambda _queue, account: account == "$G")
            client.send(b"PING\r\nPING\r\n")
            await client.flush()
            assert waited
            assert set(waited) == {"$G"}
            waited.clear()
            monkeypatch.setattr(FairQueue, "exhausted", lambda _queue, account: account == "other")
            await client.flush()
            assert not waited, "a request of a quiet account does not queue"
            client.close()

    run(test())


def test_the_share_of_a_turn_ends_with_the_turn() -> None:
    async def test() -> None:
        queue = FairQueue()
        queue.used("busy", 2 * fair_queue.ALONE_S)
        assert queue.exhausted("busy")
        assert not queue.exhausted("quiet")
        await until(lambda: not queue.exhausted("busy"))

    run(test())


def test_small_requests_add_up_within_a_turn() -> None:
    async def test() -> None:
        queue = FairQueue()
        for _ in range(100):
            queue.used("busy", fair_queue.ALONE_S / 50)
        assert queue.exhausted("busy")
        await until(lambda: not queue.exhausted("busy"))

    run(test())


def test_a_small_request_schedules_nothing() -> None:
    FairQueue().used("quiet", fair_queue.LITTLE_S / 2)  # there is no event loop here


def test_an_account_that_is_alone_has_a_larger_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_queue, "RECENTLY_S", 0.0)

    async def test() -> None:
        queue = FairQueue()
        queue.used("busy", 2 * fair_queue.DIRECT_S)
        assert not queue.exhausted("busy")
        queue.used("other", 0.0)
        assert queue.exhausted("busy")
        await until(lambda: not queue.exhausted("busy"))
        queue.used("busy", 2 * fair_queue.DIRECT_S)
        queue.wait(lambda: None, "busy")
        assert not queue.exhausted("busy")
        queue.wait(lambda: None, "other")
        assert queue.exhausted("busy")

    run(test())


def test_an_account_is_not_alone_while_another_one_sends_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A quiet client is seldom there in the same turn, but waits for the end of it."""
    now = 100.0
    clock = SimpleNamespace(perf_counter=lambda: now)
    monkeypatch.setattr(fair_queue, "time", clock)
    queue = FairQueue()
    queue._forgetting = True  # no event loop here
    queue.used("busy", 2 * fair_queue.DIRECT_S)
    assert not queue.exhausted("busy")
    queue.used("quiet", 0.0)
    queue._forget()
    queue._forgetting = True
    now += fair_queue.RECENTLY_S / 2
    queue.used("busy", 2 * fair_queue.DIRECT_S)
    assert queue.exhausted("busy")
    now += 2 * fair_queue.RECENTLY_S
    assert not queue.exhausted("busy")


def test_a_full_socket_is_read_once_per_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with running() as server:
            account = server.account("$G")
            client = await RawClient.open(server)
            await client.flush()
            monkeypatch.setattr(operations, "TURN_S", -1.0)
            with LoopTurns() as turns:
                witness = Witness(turns)
                account.subs.insert(Subscription(witness, account, b"x"))
                client.send((b"PUB x 1000\r\n" + bytes(1000) + b"\r\n") * 4000)
                await until(lambda: witness.rows == 4000)
            client.close()
        times = [at for at, _ in witness.seen]
        assert len(times) > 4, "several chunks"
        assert len(set(times)) == len(times)

    run(test())


def test_one_busy_client_is_served_per_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with running() as server:
            account = server.account("$G")
            clients = [await RawClient.open(server) for _ in range(5)]
            for client in clients:
                await client.flush()
            for module in (router, operations, fair_queue):
                monkeypatch.setattr(module, "TURN_S", -1.0)
            monkeypatch.setattr(router, "PIECE_MAX", 2)
            with LoopTurns() as turns:
                witness = Witness(turns)
                for _ in range(2):
                    account.subs.insert(Subscription(witness, account, b"x"))
                for client in clients:
                    client.send(b"PUB x 0\r\n\r\n" * 20)
                await until(lambda: witness.rows == 2 * 5 * 20)
            for client in clients:
                client.close()
        busy = {at: who for at, who in witness.seen}
        first = 5  # what was just read may be carried out in one turn
        assert len(busy) >= 5 * 20 - first

    run(test())
