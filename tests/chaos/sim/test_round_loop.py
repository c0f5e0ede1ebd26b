"""The rounds of a simulated node: the real ones, over a disk that is slow, full or failing."""

from __future__ import annotations

import ast
from random import Random

import pytest

from chaos.sim.consensus.cluster import SimCluster
from chaos.sim.consensus.disk import DiskWrite, MachineState, SimDisk
from chaos.sim.consensus.faults import Faults
from chaos.sim.consensus.node import SimNode
from chaos.sim.consensus.schedule import SECOND
from raft.core.messages import Entry
from raft.types import HardState, Index, Members, NodeId, Term
from tests.tidy.source_tree import modules

# What only Rounds may ask of a core: the order of write, flush, promise and apply is decided there.
ROUND_METHODS = {"ready", "persisted"}


def test_no_second_implementation_of_the_rounds() -> None:
    callers = {
        module.name
        for module in modules().values()
        if module.name.startswith(("raft.", "chaos."))
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute)
        and node.attr in ROUND_METHODS
        and "core" in ast.unparse(node.value)
    }
    assert callers == {"raft.host.rounds"}


def first_faults(**wanted: object) -> tuple[int, Faults]:
    """The first seed with these faults."""
    for seed in range(10_000):
        faults = Faults.drawn_from(seed)
        if all(getattr(faults, name) == value for name, value in wanted.items()):
            return seed, faults
    raise AssertionError(wanted)


def run(cluster: SimCluster, seconds: float) -> None:
    schedule = cluster.environment.schedule
    end = schedule.now_us + int(seconds * SECOND)
    while schedule.now_us < end:
        schedule.step()


class OneNode:
    """A group with a single voter, without faults unless a test sets them."""

    def __init__(self, **wanted: object) -> None:
        seed, faults = first_faults(voters=1, learners=0, spares=0, **wanted)
        self.lines: list[str] = []
        self.cluster = SimCluster(seed, faults, trace=self.lines)
        self.cluster.environment.end_faults()
        (self.node,) = self.cluster.nodes.values()
        self.node.start()

    @property
    def counters(self) -> dict[str, int]:
        return self.cluster.checks.counters

    def run(self, seconds: float) -> None:
        run(self.cluster, seconds)

    def elect(self) -> SimNode:
        self.run(6)
        assert self.node.leads
        return self.node

    def propose(self, name: bytes) -> None:
        self.node.ask(lambda _: self.node.propose(name))


PERSISTENT = {"memory_only": False, "relaxed": False}


def test_nothing_is_acknowledged_while_the_disk_stalls() -> None:
    one = OneNode(**PERSISTENT)
    node = one.elect()
    now_us = one.cluster.environment.schedule.now_us
    node.disk.trouble.stalled_until_us = now_us + 2 * SECOND
    one.propose(b"a")
    one.run(1)
    assert one.counters["acknowledged"] == 0
    assert node.disk.live.log.last_index() == 2, "it is written"
    one.run(3)
    assert one.counters["acknowledged"] == 1


def test_proposals_that_come_during_a_flush_share_the_next_batch() -> None:
    one = OneNode(**PERSISTENT)
    node = one.elect()
    node.disk.trouble.stalled_until_us = one.cluster.environment.schedule.now_us + SECOND
    for name in (b"a", b"b", b"c"):
        one.propose(name)
        one.run(0.1)
    one.run(3)
    assert one.counters["acknowledged"] == 3
    written = [line.partition("entries ")[2] for line in one.lines if "writes batch" in line]
    assert [text.partition(" ")[0] for text in written if text][-2:] == ["2..2", "3..4"]


def test_a_write_that_is_refused_is_retried_until_the_disk_has_space() -> None:
    one = OneNode(**PERSISTENT)
    node = one.elect()
    node.disk.trouble.full_until_us = one.cluster.environment.schedule.now_us + SECOND
    one.propose(b"a")
    one.run(0.9)
    assert one.counters["refused writes"] > 3
    assert one.counters["acknowledged"] == 0
    one.run(3)
    assert one.counters["acknowledged"] == 1


def test_a_node_recovers_from_its_disk_after_a_failure_in_the_same_process() -> None:
    one = OneNode(**PERSISTENT)
    node = one.elect()
    one.propose(b"a")
    one.run(3)
    node.disk.trouble.fails_next = True
    one.propose(b"b")
    one.run(3)
    assert not node.up, "its group is stopped"
    assert one.counters["failed disks"] == 1
    assert one.counters["acknowledged"] == 1
    node.recover_disk()
    one.run(6)
    assert node.leads
    one.propose(b"c")
    one.run(3)
    assert one.counters["acknowledged"] == 2
    one.cluster.checks.final()


def test_with_its_log_in_memory_a_node_whose_disk_fails_promises_nothing_in_a_new_term() -> None:
    seed = next(
        seed
        for seed in range(10_000)
        if (faults := Faults.drawn_from(seed)).memory_only
        and (faults.voters, faults.spares, faults.sleepy) == (3, 0, False)
        and not faults.core.pre_vote
    )
    cluster = SimCluster(seed, Faults.drawn_from(seed), trace=None)
    cluster.environment.end_faults()
    nodes = list(cluster.nodes.values())
    for node in nodes:
        node.start()
    run(cluster, 10)
    follower = next(node for node in nodes if not node.leads)
    follower.disk.trouble.fails_next = True
    follower.ask(lambda core: core.campaign())
    run(cluster, 10)
    assert cluster.checks.counters["failed disks"] == 1
    leader = next(node for node in nodes if node.leads)
    assert leader is not follower, "its votes wait for the disk, also the one for itself"
    leader.ask(lambda _: leader.propose(b"a"))
    run(cluster, 3)
    assert cluster.checks.counters["acknowledged"] == 1
    assert follower.up
    assert follower.state.index < leader.state.index, "it has not confirmed the new entries"
    follower.recover_disk()
    run(cluster, 10)
    assert follower.disk.durable.hard_state.term == follower.core.term, "written again"
    assert len({node.state.index for node in nodes}) == 1


def test_a_relaxed_group_acknowledges_before_the_flush_and_flushes_in_time() -> None:
    one = OneNode(relaxed=True, flush_interval_us=2 * SECOND)
    node = one.elect()
    one.run(3)
    one.propose(b"a")
    one.run(0.5)
    assert one.counters["acknowledged"] == 1
    assert node.disk.durable.log.last_index() < node.disk.live.log.last_index()
    one.run(6)
    assert node.disk.durable.log.last_index() == node.disk.live.log.last_index()


def test_only_processes_crash_in_a_relaxed_run() -> None:
    disk = SimDisk(power_fails=False)
    disk.write(DiskWrite(HardState(Term(1), NodeId(2)), [Entry(Index(1), Term(1), b"1")]))
    assert disk.safe.holds(Index(1), Term(1))
    assert disk.durable.log.last_index() == 0
    assert disk.crash(Random(1), harsh=True) == 0
    assert disk.durable.log.last_index() == 1


def test_a_log_in_memory_never_reaches_the_disk() -> None:
    disk = SimDisk(in_memory=True)
    disk.change_memory(DiskWrite(entries=[Entry(Index(1), Term(1), b"1")]))
    assert disk.safe.holds(Index(1), Term(1))
    disk.flush_to(disk.written)
    assert disk.durable.log.last_index() == 0


@pytest.mark.parametrize("replaced", [False, True])
def test_after_a_crash_the_log_follows_the_installed_state(replaced: bool) -> None:
    disk = SimDisk()
    disk.write(DiskWrite(None, [Entry(Index(1), Term(1), b"1")]))
    members = Members((NodeId(7),))
    state = MachineState(Index(9), Term(4), b"digest")
    disk.write(DiskWrite(install=state, members=members))
    disk.flush_to(disk.written)
    assert disk.live.log.last_index() == 1, "the log is replaced by a write of its own"
    if replaced:
        disk.write(DiskWrite(replace_log=True))
        assert disk.live.log.last_index() == 9
    assert (disk.durable.end(), disk.durable.members()) == ((4, 9), members)
    disk.crash(Random(1), harsh=False)
    assert (disk.live.end(), disk.live.members()) == ((4, 9), members)
    assert disk.live.state == state
