"""When a leader may serve reads without asking its followers."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from raft.core.raft_core import RaftCore
from raft.host.reads import GroupReads
from raft.host.ticker import TickPace
from raft.types import GroupId, NodeId, Role
from tests.support.host_rig import Cluster, G, run, until

TICK_S, ELECTION_TICKS = 0.05, 10


def test_ticks_keep_time_while_a_lease_fits_into_an_election_timeout() -> None:
    pace = TickPace(tick_seconds=TICK_S, election_ticks=ELECTION_TICKS)
    now = 100.0
    for _ in range(ELECTION_TICKS // 2):
        pace.ticked(now)
        now += TICK_S
    assert not pace.keeps_time(now), "not enough ticks yet"
    pace.ticked(now)
    assert pace.keeps_time(now)
    now += 0.1  # a busy loop
    assert pace.keeps_time(now)
    now += 5.0  # the process was stopped
    assert not pace.keeps_time(now)
    pace.ticked(now)
    for _ in range(ELECTION_TICKS // 2):
        assert not pace.keeps_time(now), (
            "by ticks alone, a lease from before the pause may still look valid"
        )
        now += TICK_S
        pace.ticked(now)
    assert pace.keeps_time(now)
    pace.interrupted()
    assert not pace.keeps_time(now)


def test_slow_ticks_never_keep_time() -> None:
    pace = TickPace(tick_seconds=TICK_S, election_ticks=ELECTION_TICKS)
    now = 100.0
    for _ in range(5 * ELECTION_TICKS):
        now += 2 * TICK_S  # each a tick late: a lease would last as long as an election timeout
        pace.ticked(now)
        assert not pace.keeps_time(now)


def test_only_a_leader_reads_without_a_barrier_awake_and_asleep(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        leader = await c.leader()
        followers = [n for n in c.nodes if n is not leader]
        await c.put("k", 1)
        await until(lambda: leader.host.reads_are_current(G))
        await until(lambda: leader.host.statistics().awake == 0)
        await until(lambda: leader.host.reads_are_current(G))
        assert leader.host.statistics().awake == 0, "asking does not wake the group"
        assert not any(n.host.reads_are_current(G) for n in followers)
        assert not leader.host.reads_are_current(GroupId(99))
        for node in followers:
            await node.kill()
        await until(lambda: not leader.host.reads_are_current(G))

    run(tmp_path, body)


def test_after_a_pause_a_leader_needs_a_barrier(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        leader = await c.leader()
        await until(lambda: leader.host.reads_are_current(G))
        time.sleep(0.6)
        assert not leader.host.reads_are_current(G)
        await c.put("k", 1)
        await until(lambda: any(n.host.reads_are_current(G) for n in c.nodes))

    run(tmp_path, body)


def test_a_group_of_one_always_reads_without_a_barrier(tmp_path: Path) -> None:
    async def body(c: Cluster) -> None:
        leader = await c.leader()
        time.sleep(0.6)
        assert leader.host.reads_are_current(G)

    run(tmp_path, body, names=("a",))


@pytest.mark.parametrize(
    ("reachable", "asleep", "lease", "current"),
    [
        ({1, 2}, False, True, True),
        ({1, 2}, False, False, False),  # awake: only a lease counts
        ({1, 2}, True, False, True),  # asleep: no lease, but reachable nodes would have told us
        (set(), True, False, False),
        (set(), False, True, False),  # broken links: the others may elect at once
    ],
)
def test_a_lease_or_sleep_counts_only_with_a_reachable_majority(
    reachable: set[int], asleep: bool, lease: bool, current: bool
) -> None:
    core = SimpleNamespace(
        role=Role.LEADER, asleep=asleep, lease_holds=lambda: lease, keeps_quorum=bool
    )
    pace = cast(TickPace, SimpleNamespace(keeps_time=lambda _: True))
    reads = GroupReads(cast(RaftCore, core))
    assert reads.are_current(pace, cast(set[NodeId], reachable)) is current
