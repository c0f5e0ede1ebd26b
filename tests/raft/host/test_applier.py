"""Entries that take long to apply do not hold the loop, and none is lost or applied twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from raft.core.messages import Entry
from raft.host import applier
from raft.host.group import Group, Preparing
from tests.support.host_rig import Cluster, G, run, until


def test_a_group_applies_for_a_time_slice_and_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that every entry moves by one slice: one chunk per turn."""
    now = 0.0
    monkeypatch.setattr(applier, "CHUNK_BYTES", 0)
    clock = SimpleNamespace(perf_counter=lambda: now, monotonic=applier.time.monotonic)
    monkeypatch.setattr(applier, "time", clock)
    waiting: list[Callable[[], None]] = []

    def later(_group: Group, act: Callable[[], None]) -> None:
        waiting.append(act)

    async def body(cluster: Cluster) -> None:
        (node,) = cluster.nodes
        await node.kill()
        await node.start(later=later)
        await cluster.leader()
        await until(lambda: node.ledger.applied > 0)
        apply, sizes = node.ledger.apply, []

        def slow(entries: object) -> None:
            nonlocal now
            now += 2 * applier.APPLY_S
            sizes.append(len(entries))  # type: ignore[arg-type]
            apply(entries)  # type: ignore[arg-type]

        node.ledger.apply = slow  # type: ignore[method-assign]
        before = node.ledger.applied
        for number in range(5):
            node.host.propose(G, b"[%d, 1]" % number)
        await until(lambda: bool(waiting))
        assert node.ledger.applied == before + 1, "the others wait"
        node.host.propose(G, b"[7, 1]")
        turns = 0
        while node.ledger.applied < before + 6:
            await until(lambda: bool(waiting) or node.ledger.applied == before + 6)
            if waiting:
                waiting.pop(0)()
                turns += 1
        assert sizes == [1] * 6
        assert turns >= 4

    run(tmp_path, body, names=["a"])


def test_the_groups_of_a_round_share_one_time_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that every entry moves by one slice: the second group waits for its turn."""
    now = 0.0
    clock = SimpleNamespace(perf_counter=lambda: now, monotonic=applier.time.monotonic)
    monkeypatch.setattr(applier, "time", clock)
    waiting: list[Callable[[], None]] = []

    async def body(cluster: Cluster) -> None:
        (node,) = cluster.nodes
        await node.kill()
        await node.start(later=lambda _group, act: waiting.append(act))
        await cluster.leader()
        await until(lambda: node.ledger.applied > 0)
        work = node.host._applier
        group = node.host._table.get(G)
        apply = node.ledger.apply

        def slow(entries: object) -> None:
            nonlocal now
            now += 1.1 * applier.APPLY_S
            apply(entries)  # type: ignore[arg-type]

        node.ledger.apply = slow  # type: ignore[method-assign]
        work._round_began, work._round_used_s = now, 2 * applier.APPLY_S  # used by other groups
        before = node.ledger.applied
        node.host.propose(G, b"[1, 1]")
        await until(lambda: bool(waiting))
        assert (node.ledger.applied, group.deferred) == (before, True)
        waiting.pop(0)()
        assert (node.ledger.applied, group.deferred) == (before + 1, False)

    run(tmp_path, body, names=["a"])


def test_a_long_entry_is_prepared_in_steps_and_applied_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that every step moves by one slice: one step per turn, after the entry before."""
    now = 0.0
    clock = SimpleNamespace(perf_counter=lambda: now, monotonic=applier.time.monotonic)
    monkeypatch.setattr(applier, "time", clock)
    waiting: list[Callable[[], None]] = []

    async def body(cluster: Cluster) -> None:
        (node,) = cluster.nodes
        await node.kill()
        await node.start(later=lambda _group, act: waiting.append(act))
        await cluster.leader()
        await until(lambda: node.ledger.applied > 0)
        group = node.host._table.get(G)
        before = node.ledger.applied
        story: list[str] = []
        apply = node.ledger.apply

        def noted(entries: list[Entry]) -> None:
            story.extend(f"apply {entry.data.decode()}" for entry in entries)
            apply(entries)

        def prepare(entry: Entry) -> Iterator[None]:
            nonlocal now
            for step in range(3):
                story.append(f"step {step} of {entry.data.decode()}")
                now += 2 * applier.APPLY_S
                yield

        node.ledger.apply = noted  # type: ignore[method-assign, assignment]
        group.preparer = SimpleNamespace(
            is_long=lambda entry: entry.data == b"[2, 1]", prepare=prepare
        )
        for number in (1, 2, 3):
            node.host.propose(G, b"[%d, 1]" % number)
        turns = 0
        while node.ledger.applied < before + 3:
            await until(lambda: bool(waiting) or node.ledger.applied == before + 3)
            if waiting:
                waiting.pop(0)()
                turns += 1
        steps = [f"step {step} of [2, 1]" for step in range(3)]
        assert story == ["apply [1, 1]", *steps, "apply [2, 1]", "apply [3, 1]"]
        assert turns >= 3
        assert group.preparing is None

    run(tmp_path, body, names=["a"])


def test_entries_wait_for_what_their_machine_waits_for(tmp_path: Path) -> None:
    async def body(cluster: Cluster) -> None:
        (node,) = cluster.nodes
        await cluster.leader()
        await until(lambda: node.ledger.applied > 0)
        group = node.host._table.get(G)
        before, asked = node.ledger.applied, 0
        disk: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def prepare(_entry: Entry) -> Preparing:
            nonlocal asked
            asked += 1
            if not disk.done():
                yield disk

        group.preparer = SimpleNamespace(is_long=lambda _: True, prepare=prepare)
        for number in (1, 2):
            node.host.propose(G, b"[%d, 1]" % number)
        await until(lambda: asked == 1)
        await until(lambda: group.core.status().commit >= before + 2)
        for _ in range(20):
            await asyncio.sleep(0)
        assert (asked, node.ledger.applied) == (1, before)  # nobody asks again and again
        disk.set_result(None)
        await until(lambda: node.ledger.applied == before + 2)
        assert not group.deferred

    run(tmp_path, body, names=["a"])
