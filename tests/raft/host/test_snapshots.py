"""Snapshots between hosts, and where their logs are cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from raft.host.compaction import CompactionPolicy, cut_point
from raft.host.host import HostLimits
from raft.snapshot.outbound import PIECE_BYTES, WINDOW_BYTES
from raft.store.log_store import DamagedLog
from raft.store.write_batch import LogBatch
from raft.types import Index, SnapshotMeta, Term
from tests.support.host_rig import EAGER, NO_TAIL, Cluster, G, Ledger, run, until


def test_a_node_that_missed_a_compaction_catches_up_by_snapshot(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        leader = await c.leader()
        absent = next(n for n in c.nodes if n is not leader)
        await c.put("early", 1)
        await c.leave_behind(absent, ["x" * 1000] * 60, cut=40)
        await until(lambda: bool(absent.ledger.restored))
        await c.settled()
        for i in range(5):
            await c.put(f"z{i}", i)  # and the log continues from there
        await c.settled()
        assert len(absent.ledger.values) == 66
        assert absent.host.statistics().snapshots_installed == 1
        await until(lambda: leader.host.statistics().snapshots_sent == 1)
        await absent.kill()  # state and log of the snapshot are on disk
        await absent.start()
        await c.settled()
        assert not absent.ledger.restored

    run(tmp_path, body, compaction=EAGER, limits=NO_TAIL)


def test_a_snapshot_larger_than_its_window_is_sent_while_the_log_goes_on(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        leader = await c.leader()
        absent = next(n for n in c.nodes if n is not leader)
        await c.leave_behind(absent, ["x" * 700_000] * 40, cut=30)
        for i in range(10):
            await c.put(f"z{i}", i)
        await until(lambda: bool(absent.ledger.restored))
        await c.settled()
        assert len(absent.ledger.values) == 50

    run(tmp_path, body, compaction=EAGER, limits=NO_TAIL)


def test_a_leader_lost_during_a_transfer_is_replaced(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        leader = await c.leader()
        absent = next(n for n in c.nodes if n is not leader)
        await c.leave_behind(absent, ["x" * 700_000] * 30, cut=20)
        receiver = absent.host._snapshots._receiver
        await until(lambda: any(len(s.chunks) > 2 for s in receiver._transfers.values()))
        await leader.kill()
        await until(lambda: bool(absent.ledger.restored), seconds=20)
        await c.put("after", 1)
        await c.settled()
        assert len(absent.ledger.values) == 31

    run(tmp_path, body, compaction=EAGER, limits=NO_TAIL)


def test_a_machine_ahead_of_its_log_is_damage_unless_an_installation_was_recorded(
    tmp_path: Path,
) -> None:
    async def body(c: Cluster) -> None:
        (node,) = c.nodes
        await c.put("k", 1)
        host, store = node.host, node.store
        host.remove_group(G, wipe=False)
        ledger = Ledger(store)
        ledger.applied = Index(50)
        with pytest.raises(DamagedLog):
            host.add_group(G, voters=c.voters, machine=ledger, applied=Index(50))
        batch = LogBatch()
        batch.put_installing(G, SnapshotMeta(Index(50), Term(7)))
        store.write(batch)
        host.add_group(G, voters=c.voters, machine=ledger, applied=Index(50))
        assert store.reader(G).snapshot() == SnapshotMeta(Index(50), Term(7))
        node.ledgers[G] = ledger
        await c.put("k", 2)
        assert ledger.indices[0] == 51

    run(tmp_path, body, names=["solo"])


def test_compaction_keeps_what_followers_and_transfers_will_read() -> None:
    policy = CompactionPolicy(
        keep_entries=100, keep_bytes=1000, lag_bytes_max=4000, step_entries=10, step_bytes=10**9
    )

    def cut(durable: int, *needed: int, average: int = 1, first: int = 1) -> Index | None:
        return cut_point(
            policy,
            first=Index(first),
            last=Index(1000),
            durable=Index(durable),
            average_bytes=average,
            needed=[Index(n) for n in needed],
        )

    assert cut(900) == 800
    assert cut(900, average=100) == 890  # fewer fit into keep_bytes
    assert cut(100) is None
    assert cut(115) == 15
    assert cut(109) is None  # not worth a cut
    assert cut(900, 300, 950) == 300
    assert cut(900, 0) is None
    assert cut(900, 100, average=10) == 800  # too far behind: it will get a snapshot


def test_a_lost_link_does_not_restart_the_snapshot(tmp_path: Path) -> None:
    slow = HostLimits(tail_bytes_max=1, snapshot_bytes_per_second=16 << 20)

    async def body(c: Cluster) -> None:
        leader = await c.leader()
        absent = next(n for n in c.nodes if n is not leader)
        await c.settled()
        await absent.kill()
        for i in range(12):
            await c.put(f"k{i}", "x" * 700_000)
        for node in c.alive:
            node.ledger.save()
        await until(lambda: all(n.store.reader(G).first_index() > 5 for n in c.alive))
        await absent.start(limits=slow)
        receiver = absent.host._snapshots._receiver
        await until(lambda: any(s.chunks.nbytes > 4e6 for s in receiver._transfers.values()))
        for link in leader.transport._peers.links[absent.node]:
            link.abort()
        await until(lambda: bool(absent.ledger.restored))
        await until(lambda: leader.host.statistics().snapshots_sent == 1)
        assert leader.host.statistics().snapshots_resumed == 1
        assert leader.host._snapshots._sender.sent_bytes < 8.4e6 + WINDOW_BYTES + PIECE_BYTES + 1e5
        await c.put("after", 1)
        await c.settled()

    run(tmp_path, body, compaction=EAGER, limits=slow)
