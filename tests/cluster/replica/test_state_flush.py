"""Secure erase: the order of its steps, and finishing what an earlier run left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from broker.cluster.node_files import DirectoryFiles
from broker.cluster.replica import state_flush as flushing
from broker.cluster.replica.state_flush import StateFlush
from raft import GroupId, Index
from tests.support.cluster_fakes import ClockedLoop, run, run_clocked, turns

G = GroupId(7)


@dataclass
class Log:
    first: int = 1

    def first_index(self) -> int:
        return self.first


@dataclass
class Held:
    """A group whose log is cut at once when asked, unless a follower needs it."""

    log: Log = field(default_factory=Log)
    needed: bool = False

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "erase_upto":
            self.node.events.append(f"cut behind {value}")
            if not self.needed:
                self.log.first = value + 1
        super().__setattr__(name, value)

    node: Any = None


@dataclass
class State:
    applied: int
    parts: int = 2

    def work_ahead(self) -> bool:
        self.parts -= 1
        return self.parts > 0


@dataclass
class Member:
    node: Any
    group: GroupId = G
    stream: State = field(default_factory=lambda: State(applied=30))
    dirty: bool = True
    written: int = 0
    unflushed: bool = False
    idle: int = 0

    @property
    def checkpoints(self) -> Member:
        return self

    def work_ahead(self) -> bool:
        return self.stream.work_ahead()

    def idle_bytes(self) -> int:
        return 0 if self.dirty else self.idle

    def seal(self) -> None:
        self.node.events.append("seal")
        self.dirty = True

    async def settled(self) -> None:
        """No checkpoint waits for its blocks."""

    def write_soon(self) -> None:
        self.node.events.append("checkpoint")
        self.written, self.unflushed = Index(self.stream.applied), True

    def flushed(self, index: Index) -> None:
        self.unflushed = False
        self.node.events.append(f"durable {index}")


class Node:
    """Stands for the store, the host, the meta group and the replicas of a node."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.events: list[str] = []
        self.group = Held(node=self)
        self.member = Member(self)
        self.expunged = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def trouble(self) -> str | None:
        return None

    failure = None
    full = False
    log_goal_bytes = 1 << 30

    def held(self, group: GroupId) -> Held | None:
        return self.group if group == G else None

    def written(self) -> Index:
        return Index(1)

    def flushed(self, _index: Index) -> None:
        """The meta group's state is durable."""

    def flush_state(self) -> None:
        self.events.append("flush")

    async def empty_all(self) -> None:
        self.events.append("empty files of blocks")

    def expunge(self) -> None:
        self.events.append("expunge")
        self._loop.call_soon_threadsafe(self.expunged.set)

    def flushing(self) -> StateFlush:
        part = cast(Any, self)
        return StateFlush(
            files=DirectoryFiles(self.directory),
            store=part,
            host=part,
            meta_group=part,
            replicas=part,
            block_moves=part,
        )

    def __iter__(self) -> Iterator[Member]:
        return iter([self.member])

    def get(self, group: GroupId) -> Member | None:
        return self.member if group == G else None


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flushing, "ERASE_AFTER_S", 0.0)
    monkeypatch.setattr(flushing, "ERASE_SHARE", 0)
    monkeypatch.setattr(flushing, "CUT_WITHIN_S", 0.05)


async def until_expunged(
    node: Node, work: StateFlush, *, times: int = 1, mark_left: bool = False
) -> None:
    async with asyncio.timeout(30):
        task = asyncio.create_task(work.run_erasures())
        for _ in range(times):
            await node.expunged.wait()
            node.expunged.clear()
        while (node.directory / "erasing").exists() != mark_left:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait([task])


def test_the_state_is_durable_before_the_log_is_cut_and_the_files_rewritten(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        node = Node(tmp_path)
        erasing = node.flushing()
        erasing.erased(G, Index(30))
        assert (tmp_path / "erasing").exists()
        await until_expunged(node, erasing)
        assert node.events == ["checkpoint", "flush", "durable 30", "cut behind 30",
            "empty files of blocks", "flush", "expunge"]  # fmt: skip

    run(work())


def test_a_flush_covers_checkpoints_that_were_written_before(tmp_path: Path) -> None:
    """Or the log of a busy stream is not cut: at most flushes it has just written one."""

    async def work() -> None:
        node = Node(tmp_path)
        node.member.write_soon()
        node.member.dirty = False
        node.events.clear()
        flush = node.flushing()
        flush.written(1 << 40)
        task = asyncio.create_task(flush.run())
        while len(node.events) < 2:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait([task])
        assert node.events == ["flush", "durable 30"]

    run(work())


def test_an_unfinished_erasure_is_finished_after_a_restart(tmp_path: Path) -> None:
    async def work() -> None:
        (tmp_path / "erasing").touch()
        node = Node(tmp_path)
        await until_expunged(node, node.flushing())
        assert node.events[-4:] == ["cut behind 30", "empty files of blocks", "flush", "expunge"]

    run(work())


def test_a_log_that_cannot_be_cut_yet_is_tried_again(tmp_path: Path) -> None:
    async def work() -> None:
        node = Node(tmp_path)
        node.group.needed = True
        erasing = node.flushing()
        erasing.erased(G, Index(30))
        await until_expunged(node, erasing, times=2, mark_left=True)
        node.group.needed = False
        await until_expunged(node, erasing)
        assert node.group.log.first == 31

    run(work())


async def advance_until(loop: ClockedLoop, condition: Callable[[], bool], step_s: float) -> None:
    """The clock of the loop is not real, the thread that flushes is: give it time."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await loop.advance(step_s)
        time.sleep(0.0005)


def test_a_changed_table_is_flushed_without_checkpoints_and_a_storm_of_changes_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Longer than the clock can run ahead while a slow machine flushes.
    monkeypatch.setattr(flushing, "FLUSH_EVERY_S", 1e6)

    async def work(loop: ClockedLoop) -> None:
        node = Node(tmp_path)
        flush = node.flushing()
        task = asyncio.create_task(flush.run())
        for _ in range(10):  # one change per flush
            flush.want()
            seen = len(node.events)
            step = flushing.FLUSH_PAUSE_MAX_S / 50
            await advance_until(loop, lambda seen=seen: len(node.events) > seen, step)
        assert set(node.events) == {"flush"}
        loop.ahead_s += flushing.FLUSH_EVERY_S
        # The end of the interval.
        await advance_until(loop, lambda: "durable 30" in node.events, 0.001)
        task.cancel()
        await asyncio.wait([task])

    run_clocked(work)


def test_after_a_slow_flush_the_next_one_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flushing, "FLUSH_PAUSE_MAX_S", 5.0)

    async def work(loop: ClockedLoop) -> None:
        node = Node(tmp_path)
        monkeypatch.setattr(
            node, "flush_state", lambda: (node.events.append("flush"), time.sleep(0.02))
        )
        flush = node.flushing()
        task = asyncio.create_task(flush.run())
        flush.want()
        await advance_until(loop, lambda: bool(node.events), 0.0)
        await advance_until(loop, lambda: not flush._one_at_a_time.locked(), 0.0)
        flush.want()
        pause = 0.02 * flushing.FLUSH_SHARE
        await loop.advance(pause / 2)
        await turns(20)
        assert node.events == ["flush"]
        await advance_until(loop, lambda: node.events == ["flush", "flush"], pause)
        task.cancel()
        await asyncio.wait([task])

    run_clocked(work)


@pytest.mark.parametrize(
    ("idle", "expected"),
    [
        (flushing.IDLE_BYTES_MAX, ["flush"]),
        (flushing.IDLE_BYTES_MAX + 1, ["seal", "checkpoint", "flush", "durable 30"]),
    ],
)
def test_growing_blocks_of_idle_streams_leave_the_memory(
    tmp_path: Path, idle: int, expected: list[str]
) -> None:
    """Three hundred mirrors kept 300 MB, for ever."""

    async def work() -> None:
        node = Node(tmp_path)
        node.member.dirty, node.member.idle = False, idle
        await node.flushing()._flush()
        assert node.events == expected

    run(work())


def test_a_stream_that_is_written_to_keeps_its_growing_block(tmp_path: Path) -> None:
    async def work() -> None:
        node = Node(tmp_path)
        node.member.idle = 2 * flushing.IDLE_BYTES_MAX
        await node.flushing()._flush()
        assert "seal" not in node.events

    run(work())
