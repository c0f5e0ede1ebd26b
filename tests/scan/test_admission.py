"""Scans that nobody reads hold up nobody else: not another account, and not for ever."""

from __future__ import annotations

import asyncio
import json
from itertools import count, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.config.options import (
    AccountOptions,
    AccountStore,
    Authorization,
    JetStreamOptions,
    User,
)
from broker.scan import server as scan_server
from broker.scan.admission import ScanAdmission, ScanLimits
from broker.scan.protocol import CHUNK_BYTES_MIN
from broker.scan.server import (
    WRITING_S,
    ScanReader,
    Scans,
    ScanSource,
    ScanTurns,
    WritersFirst,
)
from broker.server.routing import fair_queue
from broker.server.routing.fair_queue import FairQueue
from tests.support.scan_peers import STREAM, Store
from tests.support.server import RawClient, local, run, running_broker, until

BODY = json.dumps(
    {"stream": STREAM, "first": 1, "last": 3000, "max_chunk": CHUNK_BYTES_MIN}
).encode()
SILENT = 20  # more than any limit on scans that ever was


class Reader:
    """Takes what a scan writes; it waits for `reads` before it takes more."""

    def __init__(self, log: list[str] | None = None, *, reads: bool = True) -> None:
        self.got = bytearray()
        self.reads = asyncio.Event()
        self._log = log if log is not None else []
        if reads:
            self.reads.set()

    def of(self, account: str) -> ScanReader:
        def write(data: bytes) -> None:
            self.got += data
            self._log.append(account)

        async def drain() -> None:
            await self.reads.wait()

        return ScanReader(account, write, drain, permitted=lambda _stream: True)

    @property
    def complete(self) -> bool:
        return self.got.rstrip().endswith(b'"deleted":0}')


def store() -> Store:
    return Store.filled(3000)


def test_scans_that_nobody_reads_do_not_hold_up_another_account() -> None:
    async def test() -> None:
        scans, source = Scans(ScanTurns(FairQueue())), ScanSource(store(), "1")
        silent = [Reader(reads=False) for _ in range(SILENT)]
        async with asyncio.TaskGroup() as tasks:
            for reader in silent:
                tasks.create_task(scans.serve(reader.of("A"), BODY, lambda _: source))
            await until(lambda: all(reader.got for reader in silent))
            other = Reader()
            await scans.serve(other.of("B"), BODY, lambda _: source)
            assert other.complete
            assert not any(reader.complete for reader in silent)
            for reader in silent:
                reader.reads.set()
        assert all(reader.complete for reader in silent)
        assert (scans.refused, scans.admission.open, scans.admission.held_bytes) == (0, 0, 0)

    run(test())


def test_a_scan_without_memory_waits_and_is_not_refused() -> None:
    async def test() -> None:
        scans, source = Scans(ScanTurns(FairQueue())), ScanSource(store(), "1")
        scans.admission.limits = ScanLimits(held_bytes_per_account_max=1)
        silent, waiting, other = Reader(reads=False), Reader(), Reader()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(scans.serve(silent.of("A"), BODY, lambda _: source))
            await until(lambda: silent.got)
            tasks.create_task(scans.serve(waiting.of("A"), BODY, lambda _: source))
            await scans.serve(other.of("B"), BODY, lambda _: source)
            assert other.complete
            assert not waiting.complete
            silent.reads.set()
        assert waiting.complete
        assert silent.complete

    run(test())


def test_accounts_share_the_loop_whatever_number_of_scans_they_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = count()  # every turn takes the same time, however busy the machine is
    monkeypatch.setattr(
        fair_queue, "time", SimpleNamespace(perf_counter=lambda: next(ticks) * 0.0005)
    )

    async def test() -> None:
        scans, source = Scans(ScanTurns(FairQueue())), ScanSource(store(), "1")
        log: list[str] = []
        many = [Reader(log) for _ in range(SILENT)]
        one = Reader(log)
        async with asyncio.TaskGroup() as tasks:
            for reader in many:
                tasks.create_task(scans.serve(reader.of("A"), BODY, lambda _: source))
            await until(lambda: all(reader.got for reader in many))
            log.clear()
            await scans.serve(one.of("B"), BODY, lambda _: source)
            theirs, ours = log.count("A"), log.count("B")
        assert theirs < 3 * ours  # first come, first served would be 20 to 1

    run(test())


def test_the_time_that_scans_leave_to_writers() -> None:
    flushed = count(1)
    writing = WritersFirst(lambda: next(flushed))
    writing.used(5.0, 0.004)
    assert writing.pause_s(5.0) == pytest.approx(0.012)  # it worked for a quarter of the time
    assert writing.pause_s(5.0115) == 0  # too short for a timer
    writing.used(5.02, 0.0001)
    assert writing.pause_s(5.02) == 0
    idle = WritersFirst(lambda: 0)
    idle.used(5.0, 0.004)
    assert idle.pause_s(5.0) == 0
    ended = WritersFirst(lambda: 7)  # flushed before the first scan worked, and not since
    ended.used(5.0, 0.004)
    ended.used(5.0 + 2 * WRITING_S, 0.004)
    assert ended.pause_s(5.0 + 2 * WRITING_S) == 0


@pytest.mark.parametrize("writes", [True, False])
def test_scans_pause_while_the_node_stores_messages(
    monkeypatch: pytest.MonkeyPatch, *, writes: bool
) -> None:
    clock, worked, paused = [5.0], [0.0], [0.0]
    monkeypatch.setattr(scan_server, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    class Loop(asyncio.SelectorEventLoop):
        def call_later(self, delay: float, *work: Any, **options: Any) -> asyncio.TimerHandle:
            clock[0] += delay
            paused[0] += delay
            return super().call_later(0, *work, **options)

    class Working(Reader):
        """What is written takes time."""

        def of(self, account: str) -> ScanReader:
            inner = super().of(account)

            def write(data: bytes | memoryview) -> None:
                if len(data) == CHUNK_BYTES_MIN:
                    clock[0] += 0.01
                    worked[0] += 0.01
                inner.write(data)

            return ScanReader(account, write, inner.drain, inner.permitted)

    async def test() -> None:
        flushed = count() if writes else repeat(0)
        turns = ScanTurns(FairQueue(), WritersFirst(lambda: next(flushed)))
        scans, source = Scans(turns), ScanSource(store(), "1")
        readers = [Working(), Working()]
        async with asyncio.TaskGroup() as tasks:
            for account, reader in zip("AB", readers, strict=True):
                tasks.create_task(scans.serve(reader.of(account), BODY, lambda _: source))
        assert all(reader.complete for reader in readers)

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(test())
    assert worked[0] > 0.2
    if writes:
        assert 2 * worked[0] < paused[0] < 7 * worked[0]  # two accounts wait side by side
    else:
        assert paused[0] == 0


def test_a_cancelled_scan_gives_everything_back() -> None:
    async def test() -> None:
        scans, source = Scans(ScanTurns(FairQueue())), ScanSource(store(), "1")
        scans.admission.limits = ScanLimits(held_bytes_per_account_max=1)
        readers = [Reader(reads=False) for _ in range(3)]
        started = [
            asyncio.create_task(scans.serve(reader.of("A"), BODY, lambda _: source))
            for reader in readers
        ]
        await until(lambda: readers[0].got)
        for task in started:
            task.cancel()
        await asyncio.wait(started)
        assert (scans.admission.open, scans.admission.held_bytes) == (0, 0)
        last = Reader()
        await scans.serve(last.of("A"), BODY, lambda _: source)
        assert last.complete

    run(test())


def test_waiting_accounts_take_turns() -> None:
    async def test() -> None:
        admission = ScanAdmission(ScanLimits(held_bytes_max=10, held_bytes_per_account_max=8))
        order: list[str] = []

        async def hold(account: str, name: str) -> None:
            await admission.hold(account, 4)
            order.append(name)

        await admission.hold("A", 4)
        await admission.hold("B", 4)
        async with asyncio.TaskGroup() as tasks:
            for account, name in (("A", "a1"), ("A", "a2"), ("B", "b1"), ("B", "b2")):
                tasks.create_task(hold(account, name))
            for account in ("A", "B", "A", "B"):
                await asyncio.sleep(0)
                admission.release(account, 4)
        assert sorted(order) == ["a1", "a2", "b1", "b2"]
        assert order.index("b1") < order.index("a2")
        assert admission.held_bytes == 8

    run(test())


@pytest.mark.parametrize(
    ("limits", "others"),
    [(ScanLimits(open_per_account_max=2), True), (ScanLimits(open_max=2), False)],
)
def test_open_scans_are_bounded_per_account_and_per_node(
    limits: ScanLimits, *, others: bool
) -> None:
    admission = ScanAdmission(limits)
    for _ in range(2):
        assert admission.has_room("A")
        admission.enter("A")
    assert not admission.has_room("A")
    assert admission.has_room("B") is others
    admission.leave("A")
    assert admission.has_room("A")


CONNECT = b'CONNECT {"verbose":false,"user":"%b","pass":"pw"}\r\n'


def test_a_server_serves_a_scan_beside_many_that_nobody_reads(tmp_path: Path) -> None:
    async def test() -> None:
        options = local(
            server_name="n",
            accounts=(AccountOptions("A"), AccountOptions("B")),
            authorization=Authorization(
                users=(User("a", "pw", account="A"), User("b", "pw", account="B"))
            ),
            jetstream=JetStreamOptions(
                store_dir=str(tmp_path), accounts={"A": AccountStore(), "B": AccountStore()}
            ),
        )
        payload = bytes(900_000)
        count = 12
        async with running_broker(options) as broker:
            clients: list[RawClient] = []
            for user in (b"a", b"b"):
                client = await RawClient.open(broker.server, connect=CONNECT % user)
                clients.append(client)
                body = b'{"name":"S","subjects":["s"]}'
                client.send(b"SUB inbox 1\r\nPUB $JS.API.STREAM.CREATE.S inbox 29\r\n" + body)
                client.send(b"\r\n")
                while b'"did_create":true' not in await client.line():
                    pass
                for _ in range(count):
                    client.send(b"PUB s inbox %d\r\n%b\r\n" % (len(payload), payload))
                for _ in range(count):
                    while b'"seq"' not in await client.line():
                        pass
            scan = b'SCAN {"stream":"S","first":1,"last":%d}\r\n' % count
            for _ in range(SILENT):
                silent = await RawClient.open(broker.server, connect=CONNECT % b"a")
                silent.reader._limit = 1024  # type: ignore[attr-defined]  # it reads no further
                silent.send(scan)
                clients.append(silent)
            reader = await RawClient.open(broker.server, connect=CONNECT % b"b")
            clients.append(reader)
            reader.send(scan)
            assert (await reader.line()).startswith(b"+SCAN ")
            async with asyncio.timeout(5):  # half of the write deadline, which frees the others
                got = b""
                while b'"last_sent":12' not in got[-200:]:
                    got += await reader.reader.read(1 << 20)
            for client in clients:
                client.close()

    run(test())
