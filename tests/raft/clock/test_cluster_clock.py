"""Clock frames between real objects: samples at once, bad frames, silence of strangers."""

from __future__ import annotations

import time

import pytest

from raft.clock import cluster_clock
from raft.clock.cluster_clock import ClockFrame, ClusterClock
from raft.clock.cluster_time import NS_PER_S, ClockVerdict
from raft.transport.codec import CodecError
from raft.types import NodeId

A, B, C = (NodeId(number) for number in range(1, 4))
HOUR_NS = 3600 * NS_PER_S
ONE_WAY_NS = 1_000_000


class Net:
    """Nodes with wall clocks of their own; a frame takes a millisecond."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, wrong: dict[NodeId, int]) -> None:
        self.boot_ns = 10 * NS_PER_S
        self.wrong = wrong
        self.sender = A
        self.queue: list[tuple[NodeId, NodeId, bytes]] = []
        self.frames = 0
        monkeypatch.setattr(cluster_clock, "boot_ns", lambda: self.boot_ns)
        monkeypatch.setattr(time, "time_ns", lambda: self.boot_ns + wrong.get(self.sender, 0))
        self.clocks: dict[NodeId, ClusterClock] = {}
        for node in (A, B, C):
            self.sender = node
            self.clocks[node] = ClusterClock(
                node, links=Links(self, node), members=lambda: (A, B, C)
            )

    def tick(self) -> None:
        for node, clock in self.clocks.items():
            self.sender = node
            clock.tick()

    def deliver(self) -> None:
        while self.queue:
            sent, self.queue = self.queue, []
            self.boot_ns += ONE_WAY_NS
            for source, to, payload in sent:
                self.frames += 1
                self.sender = to
                self.clocks[to].received(source, memoryview(payload))


class Links:
    def __init__(self, net: Net, node: NodeId) -> None:
        self._net = net
        self._node = node

    def connected_peers(self) -> set[NodeId]:
        return {A, B, C} - {self._node}

    def send(self, to: NodeId, _channel: int, payload: bytes, *, control: bool = False) -> bool:
        assert control
        self._net.queue.append((self._node, to, payload))
        return True


def test_the_time_is_known_one_round_trip_after_the_links_are_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = Net(monkeypatch, {C: HOUR_NS})
    assert not any(
        clock.may_lead(alone) for clock in net.clocks.values() for alone in (True, False)
    )
    net.tick()
    before = net.boot_ns
    net.deliver()
    assert net.boot_ns - before <= 4 * ONE_WAY_NS
    assert [net.clocks[node].verdict for node in (A, B, C)] == [
        ClockVerdict.AGREES, ClockVerdict.AGREES, ClockVerdict.DISAGREES,
    ]  # fmt: skip
    assert all(clock.now_ns() == net.boot_ns for clock in net.clocks.values())
    assert net.clocks[A].is_wrong(C)
    assert not net.clocks[C].may_lead(False)
    assert net.clocks[C].may_lead(True), "nobody else can lead a group of one voter"


def test_frames_come_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net(monkeypatch, {})
    net.tick()
    net.deliver()
    assert net.frames <= 18  # of six directed pairs
    net.tick()
    assert not net.queue


def test_an_answer_to_a_frame_of_an_earlier_process_is_no_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = Net(monkeypatch, {})
    frame = ClockFrame(5, echo_ns=7, waited_ns=0, wall_ns=HOUR_NS, time_ns=HOUR_NS)
    net.clocks[A].received(B, memoryview(frame.encode()))
    assert net.clocks[A].verdict is ClockVerdict.UNKNOWN


def test_a_frame_of_another_size_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net(monkeypatch, {})
    with pytest.raises(CodecError, match="clock frame of 3 bytes"):
        net.clocks[A].received(B, memoryview(b"abc"))
