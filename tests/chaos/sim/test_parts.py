"""The parts of the simulator: disk, network and safety checks."""

from __future__ import annotations

from random import Random

import pytest

from chaos.sim.consensus.checks import Violation
from chaos.sim.consensus.cluster import SimCluster
from chaos.sim.consensus.disk import DiskWrite, MachineState, SimDisk
from chaos.sim.consensus.faults import Faults
from chaos.sim.consensus.network import SimNetwork
from chaos.sim.consensus.schedule import EventQueue, rng_for
from raft.core.messages import Entry, Message, MessageKind
from raft.types import HardState, Index, NodeId, Term


def entries(*indexes: int, term: int = 1) -> list[Entry]:
    return [Entry(Index(i), Term(term), b"%d" % i) for i in indexes]


class FixedRandom(Random):
    """Returns the same number every time."""

    def __init__(self, value: float) -> None:
        super().__init__(0)
        self._value = value

    def random(self) -> float:
        return self._value


def test_crash_loses_exactly_what_was_not_flushed() -> None:
    disk = SimDisk()
    disk.write(DiskWrite(HardState(Term(1), NodeId(2)), entries(1, 2)))
    disk.flush_to(disk.written)
    disk.write(DiskWrite(HardState(Term(2), NodeId(3)), entries(2, 3, term=2)))
    assert disk.live.log.last_index() == 3
    assert disk.durable.log.last_index() == 2
    lost = disk.crash(FixedRandom(0.9), harsh=False)
    assert lost == 1
    assert disk.live.log.last_index() == 2
    assert disk.live.log.term(Index(2)) == 1
    assert disk.live.hard_state == HardState(Term(1), NodeId(2))


def test_crash_keeps_at_most_a_prefix() -> None:
    for seed in range(60):
        disk = SimDisk()
        for index in range(1, 6):
            disk.write(DiskWrite(None, entries(index)))
        lost = disk.crash(Random(seed), harsh=True)
        kept = disk.live.log.last_index()
        assert 5 - lost <= kept <= 5 - lost + 1, "a torn write may leave its entry"
        read = disk.live.log.entries(Index(1), Index(kept + 1), 1 << 20)
        assert [e.index for e in read] == list(range(1, kept + 1))


def test_flush_covers_only_what_was_written_when_it_began() -> None:
    disk = SimDisk()
    disk.write(DiskWrite(None, entries(1)))
    position = disk.written
    disk.write(DiskWrite(None, entries(2)))
    disk.flush_to(position)
    assert disk.durable.log.last_index() == 1
    disk.flush_to(position)
    assert disk.durable.log.last_index() == 1


def test_installed_snapshot_replaces_log_and_state_together() -> None:
    disk = SimDisk()
    disk.write(DiskWrite(None, entries(1, 2)))
    disk.flush_to(disk.written)
    state = MachineState(Index(9), Term(4), b"digest")
    disk.write(DiskWrite(install=state, replace_log=True))
    assert disk.durable.log.last_index() == 2
    disk.flush_to(disk.written)
    assert disk.durable.end() == (4, 9)
    assert disk.durable.state.index == 9


def test_one_way_cut_leaves_the_other_direction_open() -> None:
    schedule = EventQueue()
    faults = Faults.drawn_from(1)
    network = SimNetwork(schedule, faults, rng_for(1, "network"))
    network.calm = True
    network.cut([NodeId(1)], [NodeId(2)])
    arrived: list[str] = []
    assert not network.send(NodeId(1), NodeId(2), arrived.append, "lost")
    assert network.send(NodeId(2), NodeId(1), arrived.append, "heard")
    while schedule.step():
        pass
    assert arrived == ["heard"]


def test_message_in_flight_is_dropped_when_its_link_is_cut() -> None:
    schedule = EventQueue()
    network = SimNetwork(schedule, Faults.drawn_from(1), rng_for(1, "network"))
    network.calm = True
    arrived: list[str] = []
    assert network.send(NodeId(1), NodeId(2), arrived.append, "late")
    network.cut([NodeId(1)], [NodeId(2)])
    while schedule.step():
        pass
    assert not arrived


def started_cluster() -> SimCluster:
    seed = next(s for s in range(99) if Faults.drawn_from(s).voters == 3)
    cluster = SimCluster(seed, Faults.drawn_from(seed), trace=None)
    for node in cluster.nodes.values():
        node.start()
    return cluster


def heartbeat(sender: int, term: int) -> Message:
    return Message(MessageKind.HEARTBEAT, NodeId(sender), NodeId(3), Term(term))


def test_checks_report_two_leaders_in_a_term() -> None:
    cluster = started_cluster()
    cluster.checks.sent(cluster.nodes[NodeId(1)], heartbeat(1, 4))
    cluster.checks.sent(cluster.nodes[NodeId(2)], heartbeat(2, 5))
    with pytest.raises(Violation, match="election safety"):
        cluster.checks.sent(cluster.nodes[NodeId(2)], heartbeat(2, 4))


def test_checks_report_a_vote_that_is_not_on_disk_and_a_second_vote_in_a_term() -> None:
    cluster = started_cluster()
    node = cluster.nodes[NodeId(1)]
    vote = Message(MessageKind.VOTE_REPLY, NodeId(1), NodeId(2), Term(3))
    with pytest.raises(Violation, match="disk before promise"):
        cluster.checks.sent(node, vote)
    node.disk.durable.hard_state = HardState(Term(3), NodeId(2))
    cluster.checks.sent(node, vote)
    with pytest.raises(Violation, match="one vote per term"):
        cluster.checks.sent(node, Message(MessageKind.VOTE_REPLY, NodeId(1), NodeId(3), Term(3)))


def test_checks_report_logs_that_differ_at_the_same_index_and_term() -> None:
    cluster = started_cluster()
    cluster.checks.wrote(cluster.nodes[NodeId(1)], [Entry(Index(1), Term(1), b"a")])
    with pytest.raises(Violation, match="log matching"):
        cluster.checks.wrote(cluster.nodes[NodeId(2)], [Entry(Index(1), Term(1), b"b")])


def test_checks_report_an_applied_entry_that_was_not_committed() -> None:
    cluster = started_cluster()
    with pytest.raises(Violation, match="not committed"):
        cluster.checks.applied(cluster.nodes[NodeId(1)], Entry(Index(1), Term(1), b"a"))


def test_checks_report_an_acknowledged_proposal_that_is_lost() -> None:
    cluster = started_cluster()
    lost = Entry(Index(1), Term(1), b"a")
    cluster.checks.acknowledged(cluster.nodes[NodeId(1)], b"a", lost)
    with pytest.raises(Violation, match="lost"):
        cluster.checks.final()
