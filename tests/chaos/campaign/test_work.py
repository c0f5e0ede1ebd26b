"""The checks of the workloads find what they are for; the conditions of a node can change."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from chaos.campaign.machines.altered_node import ConditionsFile
from chaos.campaign.machines.conditions import NORMAL, Conditions
from chaos.campaign.machines.lossy_link import DelayedFrames
from chaos.campaign.work import copies, spark_reads
from chaos.campaign.work.copies import PushReader, StandbyMirror, TableScans
from chaos.campaign.work.lifecycles import DELETE, LOOK, NOT_FOUND, SEND, LifeCycles
from chaos.campaign.work.spark_reads import BATCH, SparkReads, on_thread
from chaos.sim.promises.broken import BrokenPromise
from chaos.sim.promises.stored import StoredRow

URLS = ["nats://127.0.0.1:1"]
ROWS = [StoredRow(seq, b"s", b"%d" % seq) for seq in (1, 2, 3)]


@pytest.fixture(autouse=True)
def stored(monkeypatch: pytest.MonkeyPatch) -> None:
    async def rows(_urls: Sequence[str], _stream: str) -> list[StoredRow]:
        return ROWS

    monkeypatch.setattr(copies, "stored_rows", rows)


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ({1: b"1", 2: b"2"}, None),
        ({1: b"1", 2: b"2", 3: b"3"}, None),
        ({1: b"1"}, "2 was acknowledged before"),
        ({1: b"1", 3: b"3"}, "found 2 messages up to 3"),
        ({1: b"1", 2: b"x"}, "other contents"),
    ],
)
def test_a_scan_has_all_that_was_acked_before(found: dict[int, bytes], problem: str | None) -> None:
    scans = TableScans(URLS, 3, "S", lambda: 2)
    scans.journal.ok(scans.journal.invoke("scans", "scan", first=1, acked=2), rows=found)
    if problem is None:
        asyncio.run(scans.check())
    else:
        with pytest.raises(BrokenPromise, match=problem):
            asyncio.run(scans.check())


@pytest.mark.parametrize(
    ("received", "problem"),
    [
        ({1: b"1", 2: b"2", 3: b"3"}, None),
        ({1: b"1", 3: b"3"}, "1 messages not pushed"),
        ({1: b"1", 2: b"x", 3: b"3"}, "another content"),
    ],
)
def test_a_push_consumer_gets_everything(received: dict[int, bytes], problem: str | None) -> None:
    reader = PushReader(URLS, 3, "S", received=received)
    if problem is None:
        asyncio.run(reader.check())
    else:
        with pytest.raises(BrokenPromise, match=problem):
            asyncio.run(reader.check())


def test_a_reader_waits_for_the_end_of_the_stream_after_a_question_without_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the messages that are on their way are taken for lost."""
    reader = PushReader(URLS, 3, "S", received={1: b"1", 2: b"2"})
    asked: list[str] = []

    async def last_sequence(_: object, stream: str) -> int:
        asked.append(stream)
        if len(asked) == 1:
            raise TimeoutError
        asyncio.get_running_loop().call_soon(reader.received.setdefault, 3, b"3")
        return 3

    monkeypatch.setattr(copies, "last_sequence", last_sequence)
    asyncio.run(reader._catch_up())
    assert asked == ["S", "S"]
    assert sorted(reader.received) == [1, 2, 3]


@pytest.mark.parametrize(
    ("rows", "last", "problem"),
    [
        ([(1, b"1"), (2, b"2")], 2, None),
        ([(1, b"1"), (2, b"2"), (3, b"3")], 3, None),
        ([(1, b"1")], 1, "ended with message 1; 2 was acknowledged before"),
        ([(1, b"1"), (3, b"3")], 3, "row 2 of the query is"),
        ([(1, b"1"), (1, b"1"), (2, b"2")], 2, "row 2 of the query is"),
        ([(1, b"1"), (2, b"x")], 2, "row 2 of the query is"),
        ([(1, b"1"), (2, b"2"), (3, b"3"), (3, b"3")], 3, "4 rows of 3"),
    ],
)
def test_a_query_has_every_message_once(
    monkeypatch: pytest.MonkeyPatch, rows: list[tuple[int, bytes]], last: int, problem: str | None
) -> None:
    monkeypatch.setattr(spark_reads, "stored_rows", copies.stored_rows)
    reads = SparkReads(URLS, 3, "S", lambda: 2)
    reads.rows = rows
    reads.journal.ok(reads.journal.invoke("spark", BATCH, acked=2), last=last)
    if problem is None:
        asyncio.run(reads.check())
    else:
        with pytest.raises(BrokenPromise, match=problem):
            asyncio.run(reads.check())


def test_a_link_keeps_the_order_of_what_it_delays() -> None:
    link = DelayedFrames(1.0, 0.5, 0.0, random.Random(1))
    for number in range(50):
        link.add(b"%d" % number, now=number / 1000)
    assert link.due(0.4) == []
    wait_s = link.next_in_s(0.4)
    assert wait_s is not None
    assert 0.0 < wait_s <= 1.2
    assert link.due(2.0) == [b"%d" % number for number in range(50)]
    assert link.next_in_s(2.0) is None


def test_a_link_loses_a_share_of_the_frames() -> None:
    link = DelayedFrames(0.0, 0.0, 0.2, random.Random(1))
    for _ in range(1000):
        link.add(b"", now=0.0)
    assert 700 < len(link.due(0.0)) < 900


@pytest.mark.parametrize(
    ("copied", "problem"),
    [
        (ROWS, None),
        ([ROWS[0], StoredRow(2, b"s", b"x"), ROWS[2]], "has b'x' at 2 in place of b'2' at 2"),
        (ROWS[:2], "2 messages of 3"),
    ],
)
def test_a_mirror_in_another_cluster_equals_its_origin(
    monkeypatch: pytest.MonkeyPatch, copied: list[StoredRow], problem: str | None
) -> None:
    async def rows(urls: Sequence[str], _stream: str) -> list[StoredRow]:
        return ROWS if urls == URLS else copied

    monkeypatch.setattr(copies, "stored_rows", rows)
    monkeypatch.setattr(copies, "CATCH_UP_WITHIN_S", 0.0)
    mirror = StandbyMirror(URLS, 3, "S", ["nats://127.0.0.1:2"])
    if problem is None:
        asyncio.run(mirror.check())
    else:
        with pytest.raises(BrokenPromise, match=problem):
            asyncio.run(mirror.check())


def life(*steps: tuple[str, dict[str, object], dict[str, object] | None]) -> LifeCycles:
    """(kind, fields, answer); None: not found."""
    cycles = LifeCycles(URLS, 3, 0)
    for kind, fields, answer in steps:
        one = cycles.journal.invoke("life", kind, **fields)
        if answer is None:
            cycles.journal.failed(one, code=NOT_FOUND)
        else:
            cycles.journal.ok(one, **answer)
    return cycles


INFO = {"messages": 3, "life": "life 2", "seq": None}


def test_a_life_that_is_as_it_should_be() -> None:
    good = life(
        (SEND, {"life": 2, "number": 1}, {"seq": 1}),
        (LOOK, {"life": 2}, INFO),
        (DELETE, {"life": 2}, {"seq": None}),
        (LOOK, {"life": 0}, None),
    )
    asyncio.run(good.check())


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ((SEND, {"life": 2, "number": 1}, {"seq": 4}), "was stored at 4"),
        ((LOOK, {"life": 2}, INFO | {"life": "life 1"}), "it is 'life 1'"),
        ((LOOK, {"life": 2}, INFO | {"messages": 4}), "has 4 messages"),
        ((LOOK, {"life": 2}, None), "nobody deleted it"),
        ((LOOK, {"life": 0}, INFO), "there after its deletion"),
    ],
)
def test_a_life_that_is_not(
    step: tuple[str, dict[str, object], dict[str, object] | None], problem: str
) -> None:
    with pytest.raises(BrokenPromise, match=problem):
        asyncio.run(life(step).check())


def test_conditions_change_while_a_node_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "conditions.json"
    NORMAL.save(path)
    now = [0.0]
    monkeypatch.setattr("chaos.campaign.machines.altered_node.time.monotonic", lambda: now[0])
    seen = ConditionsFile(path)
    assert seen.now() == NORMAL
    other = Conditions(clock_ahead_s=-5.0, flush_fails=True)
    other.save(path)
    os.utime(path, ns=(1, 1))  # another time, however coarse the clock of the file system is
    assert seen.now() == NORMAL, "not at every call"
    now[0] = 1.0
    assert seen.now() == other


def test_a_node_has_its_own_clock_and_its_own_flushes(tmp_path: Path) -> None:
    path = tmp_path / "conditions.json"
    Conditions(clock_ahead_s=3600.0, flush_fails=True).save(path)
    script = f"""
import os, time
from pathlib import Path
from chaos.campaign.machines import altered_node as node
before = time.time()
found = node.ConditionsFile(Path({str(path)!r}))
node.alter_clock(found)
node.alter_flushes(found)
assert 3590 < time.time() - before < 3700, time.time() - before
try:
    os.fdatasync(os.open({str(path)!r}, os.O_RDWR))
except OSError as error:
    print(error.strerror)
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout == "Input/output error\n", done.stderr


def test_a_canceled_query_waits_for_its_thread() -> None:
    """It would open a connection after the reader was stopped, and nobody would close that."""
    began, go_on, ended = threading.Event(), threading.Event(), []

    def read() -> None:
        began.set()
        go_on.wait()
        ended.append(True)

    async def test() -> None:
        reading = asyncio.create_task(on_thread(read))
        await asyncio.to_thread(began.wait)
        reading.cancel()
        await asyncio.wait([reading], timeout=0.01)
        early = reading.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert ended
        assert not early

    asyncio.run(test())
