"""Hosts over real stores and real sockets on loopback, all in one process."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from raft.core.messages import Message, MessageKind
from raft.core.ready import CoreConfig
from raft.host.group import GroupBusy, GroupStopped, UnknownGroup
from raft.host.host import HostLimits
from raft.host.ticker import Ticker
from raft.transport.codec import encode_frames
from raft.transport.handshake import LinkClass
from raft.transport.transport import RAFT_CONTROL
from raft.types import GroupId, Index, NotLeader, Term
from tests.support.host_rig import Cluster, G, Ledger, run, until


def test_a_single_node_commits_and_remembers(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        (node,) = c.nodes
        for i in range(20):
            await c.put(f"k{i}", i)
        assert node.ledger.news[-1] == (node.node, True)
        before = dict(node.ledger.values)
        await node.kill()
        await node.start()
        await until(lambda: node.ledger.values == before)  # replayed from the log
        await c.put("after", 1)
        assert node.ledger.indices == list(range(1, node.ledger.applied + 1))

    run(tmp_path, body, names=["solo"])


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_three_nodes_apply_the_same_and_survive_the_loss_of_each(
    tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def body(c: Cluster) -> None:
        began = time.monotonic()
        first = await c.leader()
        assert time.monotonic() - began < 5
        for i in range(10):
            await c.put(f"k{i}", i)
        await c.settled()
        await first.kill()
        second = await c.leader()
        assert second is not first
        for i in range(10, 20):
            await c.put(f"k{i}", i)
        await first.start()
        await c.settled()  # caught up by log
        assert not first.ledger.restored
        await second.kill()
        await c.put("last", "one")
        await second.start()
        await c.settled()
        assert len(second.ledger.values) == 21

    run(tmp_path, body, new_loop=new_loop)


def test_many_groups_share_rounds_and_flushes(tmp_path: Path) -> None:
    groups = [GroupId(i) for i in range(1, 41)]

    async def body(c: Cluster) -> None:
        for group in groups:
            await c.leader(group)
        before = [n.host.statistics().flushes for n in c.nodes]
        wanted = {}
        for group in groups:
            leader = await c.leader(group)
            wanted[group] = leader.host.propose(group, json.dumps(["k", group]).encode())[1]
        await until(
            lambda: all(
                n.ledgers[g].applied >= index for n in c.nodes for g, index in wanted.items()
            )
        )
        for node, flushes in zip(c.nodes, before, strict=True):
            assert node.host.statistics().flushes - flushes < len(groups)
        assert all(n.ledgers[g].values == {"k": g} for n in c.nodes for g in groups)

    run(tmp_path, body, groups=groups)


def test_leadership_can_be_transferred(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        leader = await c.leader()
        await c.put("k", 1)
        other = next(n for n in c.nodes if n is not leader)
        leader.host.transfer(G, other.node)
        await until(other.leads)
        await c.put("k", 2)
        assert leader.ledger.news[-1] == (other.node, False)
        with pytest.raises(NotLeader) as caught:
            leader.host.propose(G, b"[]")
        assert caught.value.leader == other.node

    run(tmp_path, body)


def test_a_failing_machine_stops_its_group_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = GroupId(2)

    async def body(c: Cluster) -> None:
        await c.put("k", 1)
        await c.put("k", 1, other)
        leader = await c.leader()
        leader.ledger.fail_at = Index(leader.ledger.applied + 1)
        leader.host.propose(G, b'["k", 2]')
        await until(lambda: G in leader.host.statistics().stopped)
        assert "planted" in leader.host.statistics().stopped[G]
        assert leader.ledger.news[-1] == (None, False)
        assert leader.host.leader(G) is None
        with pytest.raises(GroupStopped):
            leader.host.propose(G, b'["k", 3]')
        assert leader.host.statistics().healthy
        rest = [n for n in c.nodes if n is not leader]
        await until(lambda: any(n.leads() for n in rest))
        await until(lambda: all(n.ledger.values == {"k": 2} for n in rest))
        await c.put("k", 9, other)
        await c.settled(other)

    with caplog.at_level(logging.CRITICAL):
        run(tmp_path, body, groups=[G, other])
    assert any(r.levelno == logging.CRITICAL and r.exc_info for r in caplog.records)


def test_a_message_with_a_forged_sender_ends_the_connection(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        leader = await c.leader()
        await c.put("k", 1)
        liar, victim = (n for n in c.nodes if n is not leader)
        term = Term(leader.host.status(G).core.term + 5)
        forged = Message(MessageKind.HEARTBEAT, leader.node, victim.node, term)
        links = victim.transport._acceptor.links
        link = links[liar.node, LinkClass.CONTROL]
        for frame in encode_frames([(G, forged)]):
            assert liar.transport.send(victim.node, RAFT_CONTROL, frame, control=True)
        await until(lambda: links.get((liar.node, LinkClass.CONTROL), link) is not link)
        await until(lambda: liar.transport.connected(victim.node))
        assert victim.host.status(G).core.term < term
        await c.put("k", 2)
        await c.settled()

    run(tmp_path, body)


def test_proposals_are_bounded(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        (node,) = c.nodes
        await c.leader()
        data = json.dumps(["k", "x" * 1000]).encode()
        for _ in range(9):
            node.host.propose(G, data)
        with pytest.raises(GroupBusy):
            node.host.propose(G, data)
        await until(lambda: node.host.status(G).waiting_bytes == 0)
        await c.put("k", 1)
        with pytest.raises(UnknownGroup):
            node.host.propose(GroupId(99), b"")

    run(tmp_path, body, names=["solo"], limits=HostLimits(waiting_bytes_max=10_000))


def test_a_late_tick_counts_as_one_and_causes_no_election(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        leader = await c.leader()
        await c.put("k", 1)
        term = leader.host.status(G).core.term
        time.sleep(2.0)  # the whole process stalls, for several election timeouts
        await until(lambda: all(n.host.statistics().loop_lag_seconds_max > 0.5 for n in c.nodes))
        assert all(n.host.statistics().late_ticks > 0 for n in c.nodes)
        await c.put("k", 2)
        assert leader.leads()
        assert leader.host.status(G).core.term == term

    run(tmp_path, body, config=CoreConfig(election_ticks=50))


def test_a_stall_right_after_a_late_tick_is_measured_too() -> None:
    async def main() -> None:
        ticker = Ticker(tick_ms=10, lease_ticks=4)
        loop = asyncio.get_running_loop()

        def tick() -> None:
            if ticker.ticks > 1:
                ticker.stop()
                return
            time.sleep(0.05)  # the next tick is late, and waits for the sockets
            loop.call_later(0.001, time.sleep, 0.3)

        await ticker.run(tick)
        assert ticker.late >= 1
        assert ticker.lag_max > 0.25

    asyncio.run(main())


def test_what_a_tick_raises_ends_the_ticks() -> None:
    async def main() -> None:
        ticker = Ticker(tick_ms=1, lease_ticks=4)

        def tick() -> None:
            raise ZeroDivisionError

        async with asyncio.timeout(30):
            with pytest.raises(ZeroDivisionError):
                await ticker.run(tick)
        assert ticker.ticks == 1

    asyncio.run(main())


def test_a_group_without_a_log_on_disk(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        memory = GroupId(5)
        for node in c.nodes:
            node.ledgers[memory] = Ledger(node.store, memory)
            node.host.add_group(
                memory,
                voters=c.voters,
                machine=node.ledgers[memory],
                applied=Index(0),
                persistent=False,
            )
        for group in (G, memory):  # no election that could write is running
            await c.put("first", 0, group)
            await c.settled(group)
        writes = [node.store.statistics().writes for node in c.nodes]
        for i in range(10):
            await c.put(f"k{i}", i, memory)
        await c.settled(memory)
        assert writes == [node.store.statistics().writes for node in c.nodes], "no promise waits"
        assert c.nodes[0].store.reader(memory).last_index() == 0, (
            "term and vote are stored, entries are not"
        )

    run(tmp_path, body)


def test_groups_come_and_go(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        (node,) = c.nodes
        await c.put("k", 1)
        assert node.host.groups() == [G]
        node.host.remove_group(G, wipe=True)
        assert node.host.groups() == []
        assert node.store.groups() == []
        with pytest.raises(UnknownGroup):
            node.host.leader(G)
        fresh = node.ledgers[G] = Ledger(node.store)
        node.host.add_group(G, voters=c.voters, machine=fresh, applied=Index(0))
        await c.put("k", 2)
        assert fresh.indices[0] == 1

    run(tmp_path, body, names=["solo"])
