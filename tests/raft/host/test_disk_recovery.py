"""A disk that fails and works again: the host serves reads only, then recovers by itself."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from raft.core.messages import Entry, Message, MessageKind
from raft.core.ready import CoreConfig, Ready
from raft.host.group import Group, GroupStopped
from raft.store.group_log import MemoryLog
from raft.store.log_store import LogStore, StoreTuning
from raft.store.records import StoreBusy, StoreFailed, StoreHeld
from raft.store.write_batch import LogBatch
from raft.types import GroupId, HardState, Index, NewProcessNeeded, Role, Term, node_id
from tests.support.host_rig import BrokenDisk, Cluster, G, Ledger, run, until

EIO = OSError(errno.EIO, "Input/output error")
MEMORY = GroupId(5)


@pytest.mark.parametrize("operation", ["sync", "write"])
def test_a_failed_node_serves_reads_and_recovers_when_the_disk_works_again(
    tmp_path: Path, operation: str
) -> None:
    async def body(c: Cluster) -> None:
        for i in range(10):
            await c.put(f"k{i}", i)
        victim = await c.leader()
        disk = BrokenDisk(victim.store, operation, EIO)
        applied, values = victim.ledger.applied, dict(victim.ledger.values)
        victim.host.propose(G, b'["lost or not", 1]')
        await until(lambda: not victim.host.statistics().healthy)
        assert "Input/output" in str(victim.host.statistics().failure)
        await until(lambda: any(n.leads() for n in c.nodes if n is not victim))
        for i in range(10, 20):
            rest = next(n for n in c.nodes if n is not victim and n.leads())
            rest.host.propose(G, json.dumps([f"k{i}", i]).encode())
        await until(lambda: all(n.ledger.values.get("k19") == 19 for n in c.nodes if n != victim))
        await until(lambda: disk.probes > 2)  # it retries, and stays silent meanwhile
        with pytest.raises(GroupStopped, match="disk has failed"):
            victim.host.propose(G, b'["k", 3]')
        assert (victim.ledger.applied, victim.ledger.values) == (applied, values)
        disk.repair()
        await until(lambda: victim.host.statistics().healthy)
        assert victim.host.statistics().recoveries == 1
        await c.put("after", 1)
        await c.settled()
        assert {f"k{i}" for i in range(20)} <= set(victim.ledger.values)
        assert victim.ledger.indices == list(range(1, victim.ledger.applied + 1))
        leader = await c.leader()
        leader.host.transfer(G, victim.node)
        await until(victim.leads)  # it may lead again, and what it promises is on disk
        await c.put("led again", 1)
        await c.settled()

    run(tmp_path, body, recovers=True)


def test_a_node_recovers_repeatedly(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        (node,) = c.nodes
        for turn in range(1, 4):
            await c.put(f"k{turn}", turn)
            disk = BrokenDisk(node.store, "sync", EIO)
            node.host.propose(G, b'["x", 1]')
            await until(lambda: not node.host.statistics().healthy)
            disk.repair()
            await until(lambda: node.host.statistics().recoveries == turn)  # noqa: B023
            await c.put("after", turn)
            assert {f"k{i}" for i in range(1, turn + 1)} <= set(node.ledger.values)

    run(tmp_path, body, names=["solo"], recovers=True)


def test_the_frames_of_the_error_do_not_keep_the_old_database_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that could open no more files met this: a write of state had failed."""
    # The test runner keeps what is logged, with its frames.
    monkeypatch.setattr(logging.getLogger("raft.recovery"), "disabled", True)

    def write(store: LogStore) -> None:
        handle = store.column_handle("state")
        raise StoreFailed(f"writing with {handle} failed") from EIO

    async def body(c: Cluster) -> None:
        (node,) = c.nodes
        await c.put("k", 1)
        try:
            write(node.store)
        except StoreFailed as error:
            node.store.failure = error
            node.host.store_failed(error)
        await until(lambda: node.host.statistics().recoveries == 1)
        await c.put("after", 1)

    run(tmp_path, body, names=["solo"], recovers=True)


def test_a_process_that_holds_its_old_database_asks_for_a_new_process(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        (node,) = c.nodes
        await c.put("k", 1)
        needed: list[BaseException] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: needed.append(context["exception"])
        )
        handle = node.store.column_handle("state")
        node.store.failure = EIO
        node.host.store_failed(EIO)
        await until(lambda: bool(needed))
        assert isinstance(needed[0], NewProcessNeeded)
        del handle
        await until(lambda: node.host.statistics().recoveries == 1)

    run(tmp_path, body, names=["solo"], recovers=True)


def test_groups_in_memory_go_on_while_the_disk_is_broken(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        for node in c.nodes:
            ledger = node.ledgers[MEMORY] = Ledger(node.store, MEMORY)
            node.host.add_group(
                MEMORY, voters=c.voters, machine=ledger, applied=Index(0), persistent=False
            )
        await c.put("k", 1, MEMORY)
        victim = await c.leader(MEMORY)
        disk = BrokenDisk(victim.store, "sync", EIO)
        victim.store.failure = EIO
        victim.host.store_failed(EIO)
        await c.put("k", 2, MEMORY)
        assert victim.leads(MEMORY)
        disk.repair()
        await until(lambda: victim.host.statistics().healthy)
        await c.put("k", 3, MEMORY)
        await c.put("k", 3)
        await c.settled(MEMORY)
        ledger = victim.ledgers[MEMORY]
        assert ledger.indices == list(range(1, ledger.applied + 1))

    run(tmp_path, body, recovers=True, config=CoreConfig(election_ticks=30))


@pytest.mark.parametrize("operation", ["sync", "write"])
def test_a_vote_that_was_not_confirmed_is_written_again_before_it_counts(
    tmp_path: Path, operation: str
) -> None:
    """The log of the group is in memory; its term and vote are stored."""

    async def body(c: Cluster) -> None:
        (node,) = c.nodes
        await c.put("k", 1)
        ledger = node.ledgers[MEMORY] = Ledger(node.store, MEMORY)
        disk = BrokenDisk(node.store, operation, EIO)
        node.host.add_group(
            MEMORY, voters=c.voters, machine=ledger, applied=Index(0), persistent=False
        )
        node.host.campaign(MEMORY)
        await until(lambda: not node.host.statistics().healthy)
        ticks = node.host._ticker.ticks
        await until(lambda: node.host._ticker.ticks > ticks + 30)  # time for many elections
        assert not ledger.applied, "a term without a vote on disk commits nothing"
        disk.repair()
        await until(lambda: bool(ledger.applied))
        assert node.store.hard_state(MEMORY).term == node.host.status(MEMORY).core.term
        assert node.store.hard_state(MEMORY).vote == node.node

    run(tmp_path, body, names=["solo"], recovers=True)


class ScriptedCore:
    """Returns prepared Readies, and records which were reported as persisted."""

    def __init__(self, *readies: Ready) -> None:
        self.readies, self.persisted_numbers = list(readies), list[int]()
        self.applied_index = Index(0)

    def has_ready(self) -> bool:
        return bool(self.readies)

    def ready(self) -> Ready:
        return self.readies.pop(0)

    def persisted(self, number: int, *, term: Term) -> None:
        self.persisted_numbers.append(number)


def test_a_promise_that_depends_on_a_failed_flush_waits_with_it(tmp_path: Path) -> None:
    """It writes nothing itself, so it could be mistaken for one whose flush is done."""
    me = node_id("a")

    def ready(number: int, hard_state: HardState | None) -> Ready:
        vote = Message(MessageKind.VOTE_REPLY, me, node_id("b"), Term(1))
        return Ready(number, Term(1), hard_state, [], [], [vote], [], None, [], None, Role.FOLLOWER)

    async def body(c: Cluster) -> None:
        (node,) = c.nodes
        core = ScriptedCore(ready(1, HardState(Term(1), me)))
        group = Group(
            MEMORY,
            core=core,  # type: ignore[arg-type]
            log=MemoryLog(MEMORY),
            machine=Ledger(node.store, MEMORY),
            persistent=False,
        )
        disk = BrokenDisk(node.store, "sync", EIO)
        rounds = node.host._rounds
        rounds.mark(group)
        await until(lambda: not node.host.statistics().healthy)
        core.readies.append(ready(2, None))
        rounds.mark(group)
        count = rounds.count
        await until(lambda: not core.readies and rounds.count > count)
        assert core.persisted_numbers == []
        disk.repair()
        await until(lambda: core.persisted_numbers == [1, 2])

    run(tmp_path, body, names=["a"], recovers=True)


def test_what_the_log_showed_is_in_new_files_after_reopening(tmp_path: Path) -> None:
    """After a failed flush the end of the log may be in the page cache only: overwrite it."""
    store = LogStore.open(tmp_path / "a", node_name="a", cluster_name="t")
    batch = LogBatch()
    batch.put_entries(G, [Entry(Index(1), Term(1), b"one")])
    store.write(batch)
    before = {file.name for file in (tmp_path / "a" / "segments").glob("*.seg")}
    BrokenDisk(store, "sync", EIO).repair()
    with pytest.raises(StoreFailed):
        store.flush()
    store.reopen()
    assert store.statistics().healthy
    shutil.copytree(tmp_path / "a", tmp_path / "b", ignore=shutil.ignore_patterns("*.new"))
    store.close()
    for name in before:
        segment = tmp_path / "b" / "segments" / name
        if segment.exists():
            segment.write_bytes(segment.read_bytes()[:4096].ljust(segment.stat().st_size, b"\0"))
    store = LogStore.open(tmp_path / "b", node_name="a", cluster_name="t")
    assert [entry.data for entry in store.reader(G).entries(Index(1), Index(2), 100)] == [b"one"]
    store.close()


def test_no_flush_counts_after_one_that_failed(tmp_path: Path) -> None:
    store = LogStore.open(tmp_path, node_name="a", cluster_name="t")
    disk = BrokenDisk(store, "sync", EIO)
    with pytest.raises(StoreFailed, match="Input/output"):
        store.flush()
    disk.works()  # the disk works again, but the kernel may have dropped pages
    with pytest.raises(StoreFailed, match="already failed"):
        store.flush()
    with pytest.raises(StoreFailed, match="already failed"):
        store.flush_state()
    store.close()


def test_a_store_is_not_reopened_during_a_flush_or_an_iteration(tmp_path: Path) -> None:
    store = LogStore.open(tmp_path, node_name="a", cluster_name="t")
    with store.keep_open(), pytest.raises(StoreBusy):
        store.reopen()
    store.state_column()[b"k"] = b"v"
    reading = store.state_column().items()
    next(iter(reading))
    with pytest.raises(StoreHeld, match="still open in this process"):
        store.reopen()
    del reading
    store.reopen()
    assert store.state_column()[b"k"] == b"v"
    store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=48m", "none", str(place)]
    if os.geteuid() != 0 or subprocess.run(mounting, check=False).returncode != 0:
        pytest.skip("only root may mount")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_recovery_from_a_disk_that_was_completely_full(small_disk: Path) -> None:
    """Without the reserve, which would stop the node earlier, the log finds no space to grow."""

    async def body(c: Cluster) -> None:
        (node,) = c.nodes
        await c.put("early", 1)
        (small_disk / "filler").write_bytes(bytes(30 << 20))
        sent = 0
        while node.host.statistics().healthy:
            sent += 1
            index = node.host.propose(G, json.dumps([f"k{sent}", "x" * 500_000]).encode())[1]
            ledger = node.ledger
            await until(
                lambda: ledger.applied >= index or not node.host.statistics().healthy  # noqa: B023
            )
        assert "the disk is full" in str(node.host.statistics().failure)
        acked = dict(node.ledger.values)  # reads still work
        assert len(acked) > 1
        with pytest.raises(GroupStopped):
            node.host.propose(G, b"[]")
        (small_disk / "filler").unlink()
        await until(lambda: node.host.statistics().healthy, seconds=20)
        await c.put("after", 1)
        assert acked.items() <= node.ledger.values.items()
        await node.kill()
        await node.start(tuning=tuning)
        await until(lambda: acked.items() <= node.ledger.values.items())

    tuning = StoreTuning(segment_bytes_max=4 << 20, state_buffer_bytes=2 << 20, reserve_percent=0)
    run(small_disk, body, names=["solo"], recovers=True, tuning=tuning)
