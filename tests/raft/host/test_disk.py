"""The host and its disk: flushes before promises, refused writes, failures."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from raft.host.group import GroupStopped
from raft.store.log_store import StoreTuning
from raft.store.segments.log import SegmentBusy
from raft.store.write_batch import LogBatch
from raft.types import GroupId
from tests.support.host_rig import BrokenDisk, Cluster, G, GatedFlush, run, until


@pytest.mark.parametrize("operation", ["sync", "write"])
def test_a_failing_disk_stops_every_promise_of_the_node(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, operation: str
) -> None:
    async def body(c: Cluster) -> None:
        await c.put("k", 1)
        leader = await c.leader()

        BrokenDisk(leader.store, operation, OSError(28, "No space left on device"))
        applied = leader.ledger.applied
        leader.host.propose(G, b'["k", 2]')
        await until(lambda: bool(failures))
        assert not leader.host.statistics().healthy
        assert "No space left" in str(leader.host.statistics().failure)
        assert leader.ledger.applied == applied
        with pytest.raises(GroupStopped):
            leader.host.propose(G, b'["k", 3]')
        rest = [n for n in c.nodes if n is not leader]
        await until(lambda: any(n.leads() for n in rest))

    failures: list[BaseException] = []
    with caplog.at_level(logging.CRITICAL):
        run(tmp_path, body, on_failure=failures.append)
    assert "disk has failed" in caplog.text


def test_a_refused_write_is_retried(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        await c.put("k", 1)
        (node,) = c.nodes
        refusals = 5

        real = node.store.log.write

        def write(batch: LogBatch, *, frees: bool = False) -> int:
            nonlocal refusals
            if refusals:
                refusals -= 1
                raise SegmentBusy("not now")
            return real(batch, frees=frees)

        node.store.log.write = write  # type: ignore[method-assign]
        for i in range(3):
            await c.put(f"k{i}", i)
        assert node.host.statistics().refused_writes == 5

    run(tmp_path, body, names=["solo"])


def test_nothing_is_applied_before_a_majority_has_flushed(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        await c.put("k", 1)
        leader = await c.leader()
        await c.settled()
        followers = [n for n in c.nodes if n is not leader]
        gates = [GatedFlush(n.store) for n in followers]
        _, index = leader.host.propose(G, b'["k", 2]')
        await until(lambda: all(gate.waiting.is_set() for gate in gates))
        await until(lambda: leader.host.status(G).core.persisted_index == index)
        # Heartbeats go on meanwhile: no election starts, and nothing is applied.
        beats = leader.transport.statistics().sent_frames + 20
        await until(lambda: leader.transport.statistics().sent_frames > beats)
        assert leader.host.status(G).core.commit < index
        assert all(n.ledger.values == {"k": 1} for n in c.nodes)
        gates[0].gate.set()  # with the leader that is a majority
        await until(lambda: leader.ledger.values == {"k": 2})
        gates[1].gate.set()
        await c.settled()

    run(tmp_path, body)


def test_a_leader_counts_itself_only_after_its_own_flush(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        await c.put("k", 1)
        (node,) = c.nodes
        gate = GatedFlush(node.store)
        node.host.propose(G, b'["k", 2]')
        await until(gate.waiting.is_set)
        rounds = node.host.statistics().rounds
        node.host.propose(G, b'["k", 3]')  # collected for the next flush
        await until(lambda: node.host.statistics().rounds > rounds)
        assert node.ledger.values == {"k": 1}
        gate.gate.set()
        await until(lambda: node.ledger.values == {"k": 3})

    run(tmp_path, body, names=["solo"])


def test_a_busy_group_keeps_the_disk_busy_without_blocking_other_groups(tmp_path: Path) -> None:
    """It may have more than one Ready waiting for the disk, or it would write one per flush. Other
    groups do not wait until it has written everything."""
    other = GroupId(2)

    async def body(c: Cluster) -> None:
        (node,) = c.nodes
        await c.put("k", 1)
        await c.put("k", 1, other)
        gate = GatedFlush(node.store)
        large = json.dumps(["k", "x" * (1 << 20)]).encode()
        for _ in range(48):
            last = node.host.propose(G, large)[1]
        await until(gate.waiting.is_set)
        await until(lambda: not node.host.statistics().waiting_groups)
        facts = node.host.statistics()
        assert facts.waiting_promises > 2
        assert 1 < facts.waiting_batches <= 3
        assert facts.waiting_bytes == 48 * len(large)
        index = node.host.propose(other, b'["k", 2]')[1]
        gate.gate.set()
        await until(lambda: node.ledgers[other].applied >= index)
        assert node.ledger.applied < last
        await until(lambda: node.ledger.applied == last)

    tuning = StoreTuning(segment_bytes_first=64 << 20, segment_bytes_max=64 << 20)
    run(tmp_path, body, names=["solo"], groups=[G, other], tuning=tuning)
