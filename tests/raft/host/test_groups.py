"""Members, reads, sleep, lost logs and bad input, on hosts over real stores and sockets."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raft.core.messages import Message, MessageKind
from raft.host.group import EntryTooLarge, GroupStopped, MachineDamaged
from raft.host.group_table import GroupTable
from raft.host.host import HostLimits
from raft.host.inbound import STRAYS_NORMAL
from raft.host.latency import Histogram
from raft.store.log_store import DamagedLog
from raft.transport.codec import encode_frames
from raft.transport.transport import RAFT_CONTROL
from raft.types import ChangeRefused, GroupId, Index, NodeId, NotLeader, Role, Term, node_id
from tests.support.host_rig import Cluster, G, Ledger, Node, flip_bit, run, until

FOUR = ("a", "b", "c", "d")


def members(node: Node) -> set[NodeId]:
    return set(node.host.status(G).core.voters)


def test_members_change_and_messages_of_a_former_member_are_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="raft.host")

    async def body(c: Cluster) -> None:
        leader = await first_leader(c)
        leaving = next(n for n in c.nodes[:3] if n is not leader)
        staying = [n for n in c.nodes if n is not leaving]
        leader.host.propose(G, json.dumps(["k", 1]).encode())
        await until(lambda: leader.ledger.values.get("k") == 1)
        wanted = [n.node for n in staying]
        leader.host.change_members(G, voters=c.voters, learners=[node_id("d")])
        await until(lambda: c.nodes[3].ledger.values.get("k") == 1)
        await until(lambda: leader.host.status(G).core.members_index <= leader.ledger.applied)
        leader.host.change_members(G, voters=wanted)
        with pytest.raises(ChangeRefused):
            leader.host.change_members(G, voters=c.voters)
        await until(lambda: all(members(n) == set(wanted) for n in staying))
        await until(lambda: not leader.host.status(G).core.outgoing)
        await until(lambda: c.nodes[3].host.role(G) is Role.FOLLOWER)
        stray = Message(MessageKind.VOTE_REPLY, leaving.node, leader.node, Term(1))
        for _ in range(3):
            (frame,) = encode_frames([(G, stray)])
            leaving.transport.send(leader.node, RAFT_CONTROL, frame, control=True)
        await until(lambda: leader.host.statistics().refused_messages >= 3)
        # After a restart the members come from the log, not from the arguments of add_group.
        await c.nodes[3].kill()
        await c.nodes[3].start()
        assert members(c.nodes[3]) == set(wanted)

    run(tmp_path, body, names=FOUR, voters=[node_id(name) for name in "abc"])
    lines = [r for r in caplog.records if "not a member" in r.getMessage()]
    assert len(lines) == 1


async def first_leader(c: Cluster) -> Node:
    await until(lambda: any(n.leads() for n in c.nodes))
    return next(n for n in c.nodes if n.leads())


def test_a_read_barrier_shows_every_write_before_it(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        leader = await c.leader()
        for i in range(5):
            _, index = leader.host.propose(G, json.dumps(["k", i]).encode())
            await until(lambda: leader.ledger.applied >= index)  # noqa: B023
            reads = [leader.host.read_barrier(G) for _ in range(20)]
            assert all(seen >= index for seen in await asyncio.gather(*reads))
        follower = next(n for n in c.nodes if n is not leader)
        with pytest.raises(NotLeader):
            await follower.host.read_barrier(G)
        others = [n for n in c.nodes if n is not leader]
        for node in others:
            await node.kill()
        with pytest.raises(NotLeader):  # no follower confirms it, and the leader steps down
            await leader.host.read_barrier(G)

    run(tmp_path, body)


def test_idle_groups_sleep_and_a_proposal_wakes_them(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        await c.put("k", 1)
        await until(lambda: all(n.host.statistics().awake == 0 for n in c.nodes))
        terms = [n.host.status(G).core.term for n in c.nodes]
        rounds = [n.host.statistics().rounds for n in c.nodes]
        ticks = c.nodes[0].host._ticker.ticks
        await until(lambda: c.nodes[0].host._ticker.ticks > ticks + 60)  # several election timeouts
        worked = [n.host.statistics().rounds - r for n, r in zip(c.nodes, rounds, strict=True)]
        assert max(worked) < 10, (
            "an awake group would have sent a heartbeat every other tick, at least thirty"
        )
        assert [n.host.status(G).core.term for n in c.nodes] == terms
        assert all(n.host.leader(G) for n in c.nodes)
        await c.put("k", 2)
        await c.settled()
        assert [n.host.status(G).core.term for n in c.nodes] == terms

    run(tmp_path, body)


def test_losing_a_node_wakes_the_groups_it_led(tmp_path: Path) -> None:
    groups = [GroupId(n) for n in range(1, 31)]

    async def body(c: Cluster) -> None:
        for group in groups:
            await c.put("k", 1, group)
        await until(lambda: all(n.host.statistics().awake == 0 for n in c.nodes))
        victim = max(c.nodes, key=lambda n: n.host.statistics().leading)
        await victim.kill()
        rest = c.alive

        def led() -> bool:
            return all(n.host.leader(g) in {r.node for r in rest} for n in rest for g in groups)

        await until(led)
        await until(lambda: all(n.host.statistics().awake == 0 for n in rest))  # without it
        await c.put("k", 2, groups[0])
        await victim.start(groups=groups)
        await until(lambda: victim.ledgers[groups[0]].values.get("k") == 2)
        await until(lambda: all(n.host.statistics().awake == 0 for n in c.nodes))

    run(tmp_path, body, groups=groups)


def test_a_member_that_lost_its_log_in_memory_does_not_vote_until_it_caught_up(
    tmp_path: Path,
) -> None:
    memory = GroupId(5)

    def join(c: Cluster, node: Node) -> None:
        ledger = node.ledgers[memory] = Ledger(node.store, memory)
        node.host.add_group(
            memory, voters=c.voters, machine=ledger, applied=Index(0), persistent=False
        )

    async def body(c: Cluster) -> None:
        for node in c.nodes:
            join(c, node)
        await c.put("k", 1, memory)
        leader = await c.leader(memory)
        await c.settled(memory)
        other = next(n for n in c.nodes if n is not leader)
        await other.kill()
        await c.put("k", 2, memory)
        await other.start()
        join(c, other)
        assert other.host.role(memory) is Role.LEARNER
        assert other.host.statistics().recovering == 1
        await until(lambda: other.host.role(memory) is Role.FOLLOWER)
        assert other.ledgers[memory].values == {"k": 2}
        # All of them at once: nothing is left, and the group starts from scratch.
        for node in c.nodes:
            await node.kill()
        for node in c.nodes:
            await node.start()
            join(c, node)
        await c.put("k", 3, memory)
        await c.settled(memory)

    run(tmp_path, body)


def test_a_damaged_log_is_given_up_and_fetched_again(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        for i in range(5):
            await c.put(f"k{i}", i)
        await c.settled()
        victim = next(n for n in c.nodes if not n.leads())
        flip_bit(victim.store, 3)
        await victim.kill()
        with pytest.raises(DamagedLog):
            await victim.start()
        ledger = victim.ledgers[G] = Ledger(victim.store)
        victim.host.add_group(G, voters=c.voters, machine=ledger, applied=Index(0), log_lost=True)
        victim.task = asyncio.create_task(victim.host.run())
        victim.alive = True
        assert victim.host.role(G) is Role.LEARNER
        await until(lambda: victim.host.role(G) is Role.FOLLOWER)
        await c.put("after", 1)
        await c.settled()

    run(tmp_path, body)


def test_messages_for_unknown_groups_are_counted_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="raft.host")

    async def body(c: Cluster) -> None:
        a, b, _ = c.nodes
        await c.put("k", 1)
        stray = Message(MessageKind.HEARTBEAT, a.node, b.node, Term(9))
        (frame,) = encode_frames([(GroupId(77), stray)])
        for _ in range(5):
            a.transport.send(b.node, RAFT_CONTROL, frame, control=True)
        await until(lambda: b.host.statistics().stray_messages == 5)
        (line,) = [r for r in caplog.records if "group 77" in r.getMessage()]
        assert line.levelno == logging.DEBUG  # it is normal while groups come and go
        for _ in range(STRAYS_NORMAL):
            a.transport.send(b.node, RAFT_CONTROL, frame, control=True)
        await until(lambda: b.host.statistics().stray_messages == 5 + STRAYS_NORMAL)
        await c.put("k", 2)

    run(tmp_path, body)
    _, line = [r for r in caplog.records if "group 77" in r.getMessage()]
    assert line.levelno == logging.WARNING
    assert "keep arriving" in line.getMessage()


def test_an_entry_beyond_the_limit_is_refused_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(c: Cluster) -> None:
        (node,) = c.nodes
        await c.put("k", 1)
        for _ in range(2):
            with pytest.raises(EntryTooLarge):
                node.host.propose(G, b"x" * 1001)
        await c.put("k", 2)
        assert node.host.statistics().refused_entries == 2

    run(tmp_path, body, names=["solo"], limits=HostLimits(entry_bytes_max=1000))
    assert caplog.text.count("refused an entry of 1001 bytes: it is too large") == 1


def test_a_full_disk_silences_the_node_until_it_has_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full: set[str] = set()
    real = os.statvfs

    def statvfs(path: str) -> object:
        facts = real(path)
        free = 0 if Path(path).name in full else facts.f_bavail
        return SimpleNamespace(f_bavail=free, f_blocks=facts.f_blocks, f_frsize=facts.f_frsize)

    monkeypatch.setattr("raft.store.disk_space.os.statvfs", statvfs)

    async def body(c: Cluster) -> None:
        await c.put("k", 1)
        leader = await c.leader()
        await c.settled()
        full.add(leader.name)
        await until(lambda: not leader.host.statistics().healthy)
        assert "full" in str(leader.host.statistics().failure)
        with pytest.raises(GroupStopped, match="full"):
            leader.host.propose(G, b"[]")
        assert leader.ledger.values == {"k": 1}, "stored values can be read"
        rest = [n for n in c.nodes if n is not leader]
        await until(lambda: any(n.leads() for n in rest))
        other = next(n for n in rest if n.leads())
        _, index = other.host.propose(G, json.dumps(["k", 2]).encode())
        await until(lambda: other.ledger.applied >= index)
        assert leader.ledger.applied < index, "nothing is promised or applied meanwhile"
        full.clear()
        await until(lambda: leader.ledger.values == {"k": 2})
        assert leader.host.statistics().healthy
        await c.put("k", 3)
        await c.settled()

    run(tmp_path, body)


def test_metrics_show_terms_leaders_latencies_and_queue_depths(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        leader = await c.leader()
        for i in range(10):
            await c.put("k", i)
        metrics = leader.host.metrics()
        statistics = metrics.statistics
        assert metrics.leaders == {G: leader.node}
        assert metrics.terms[G] == leader.host.status(G).core.term
        assert statistics.commit_latency.count >= 10
        assert statistics.flush_latency.count == statistics.flushes > 0
        assert 0 < statistics.commit_latency.quantile(0.5) <= statistics.commit_latency.seconds_max
        assert statistics.waiting_bytes == statistics.waiting_promises == 0

    run(tmp_path, body)


def test_quantiles_are_upper_bounds() -> None:
    histogram = Histogram()
    for number in range(1, 101):
        histogram.observe(number / 1000)
    latency = histogram.snapshot()
    assert 0.05 <= latency.quantile(0.5) <= 0.1024
    assert latency.quantile(1.0) == pytest.approx(0.1)


@pytest.mark.parametrize(("error", "shown"), [(MachineDamaged("a bit"), False), (KeyError(), True)])
def test_damage_of_the_state_is_no_bug_and_has_no_traceback(
    error: Exception, *, shown: bool, caplog: pytest.LogCaptureFixture
) -> None:
    stopped: list[str] = []
    table = SimpleNamespace(_stop=lambda _, reason: stopped.append(reason))
    GroupTable.fail(cast(Any, table), cast(Any, SimpleNamespace(id=7, stopped=None)), error)
    assert stopped == [f"{type(error).__name__}: {error}"]
    assert bool(caplog.records[0].exc_info) == shown


def test_a_lack_of_memory_is_told_to_whoever_runs_the_event_loop() -> None:
    """It is not one group's: a process that goes on might lack anything."""
    told: list[object] = []
    table = SimpleNamespace(_stop=lambda _, _reason: None)

    async def fail(error: Exception) -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: told.append(context["exception"])
        )
        GroupTable.fail(cast(Any, table), cast(Any, SimpleNamespace(id=7, stopped=None)), error)

    asyncio.run(fail(KeyError()))
    assert told == []
    error = MemoryError()
    asyncio.run(fail(error))
    assert told == [error]
