"""When a leader may serve reads without asking its followers."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raft.host.ticker import TickPace
from raft.types import GroupId, NodeId, Role
from tests.support.host_rig import Cluster, G, Node, run, until

TICK_S, LEASE_TICKS = 0.05, 4


def paced(now: float = 100.0, *, tick_s: float = TICK_S) -> tuple[TickPace, float]:
    """A pace of regular ticks, and the time of the last one."""
    pace = TickPace(tick_seconds=TICK_S, lease_ticks=LEASE_TICKS)
    for _ in range(10):
        now += tick_s
        pace.ticked(now)
    return pace, now


def test_a_lease_ends_by_the_clock() -> None:
    pace, now = paced()
    assert pace.within_lease(0, now)
    assert pace.within_lease(3, now + 0.04)
    assert not pace.within_lease(3, now + 0.06)
    assert not pace.within_lease(LEASE_TICKS, now), "by ticks it has ended"
    assert not pace.within_lease(0, now + 5), "the process was stopped"


def test_late_ticks_do_not_make_a_lease_longer() -> None:
    pace, now = paced(tick_s=2 * TICK_S)
    assert pace.within_lease(1, now + 0.05)
    assert not pace.within_lease(2, now + 0.01), "two ticks, but four tick intervals"


def test_no_lease_without_the_time_of_the_tick_when_it_began() -> None:
    pace, now = paced()
    pace.interrupted()
    pace.ticked(now + TICK_S)
    assert pace.within_lease(0, now + TICK_S)
    assert not pace.within_lease(1, now + TICK_S)


def dropping(send: Callable[..., bool], cut: set[NodeId]) -> Callable[..., bool]:
    def send_unless_cut(to: NodeId, *arguments: Any, **options: Any) -> bool:
        return to in cut or send(to, *arguments, **options)

    return send_unless_cut


async def reads_by_lease(leader: Node) -> None:
    """Read until a read needs no barrier."""

    async def read() -> bool:
        if leader.host.reads_are_current(G):
            return True
        await leader.host.read_barrier(G)
        return False

    for _ in range(1000):
        if await read():
            return
    raise AssertionError("no lease")


def test_a_lease_needs_a_read_and_only_the_leader_has_one(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        leader = await c.leader()
        await c.put("k", 1)
        assert not any(n.host.reads_are_current(G) for n in c.nodes), "nobody has read"
        await reads_by_lease(leader)
        assert not any(n.host.reads_are_current(G) for n in c.nodes if n is not leader)
        assert not leader.host.reads_are_current(GroupId(99))

    run(tmp_path, body)


def test_a_group_that_sleeps_has_no_lease_and_a_barrier_wakes_it(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        leader = await c.leader()
        await reads_by_lease(leader)
        await until(lambda: leader.host.statistics().awake == 0)
        assert not leader.host.reads_are_current(G)
        assert leader.host.statistics().awake == 0, "asking does not wake the group"
        await reads_by_lease(leader)
        assert leader.host.statistics().awake == 1

    run(tmp_path, body)


def test_a_leader_that_lost_its_followers_soon_has_no_lease(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        leader = await c.leader()
        await reads_by_lease(leader)
        for node in c.nodes:
            if node is not leader:
                await node.kill()
        await until(lambda: not leader.host.reads_are_current(G))

    run(tmp_path, body)


def test_a_sleeping_leader_that_is_cut_off_serves_no_read_once_another_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its links stay open and nothing arrives: it takes the others for idle."""

    async def body(c: Cluster) -> None:
        old = await c.leader()
        await c.put("k", 1)
        await reads_by_lease(old)
        others = [node for node in c.nodes if node is not old]
        await until(lambda: all(n.host.statistics().awake == 0 for n in c.nodes))
        for node in c.nodes:
            cut = {n.node for n in others} if node is old else {old.node}
            monkeypatch.setattr(node.transport, "send", dropping(node.transport.send, cut))
        stale = False

        def another_leads() -> bool:
            nonlocal stale
            led = any(n.leads() for n in others)
            stale |= led and old.host.reads_are_current(G)
            if not led and others[0].host.role(G) is Role.FOLLOWER:
                others[0].host.campaign(G)  # it does not wait until the beats are missed
            return led

        await until(another_leads)
        await until(lambda: another_leads() and not old.leads())
        assert not stale

    run(tmp_path, body)


def test_after_a_pause_a_leader_needs_a_barrier(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        leader = await c.leader()
        await reads_by_lease(leader)
        time.sleep(0.6)
        assert not leader.host.reads_are_current(G)

    run(tmp_path, body)


def test_a_group_of_one_always_reads_without_a_barrier(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        leader = await c.leader()
        await until(lambda: leader.host.reads_are_current(G))
        time.sleep(0.6)
        assert leader.host.reads_are_current(G)

    run(tmp_path, body, names=("a",))
