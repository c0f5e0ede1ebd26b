"""Acks and pull requests on their way to leaders: once, in order, in few frames."""

from __future__ import annotations

import pytest

from broker.cluster.consumer_requests import forwarding as module
from broker.cluster.consumer_requests import waiting_for_leader as holding
from broker.cluster.consumer_requests import waiting_pulls as pulls
from broker.cluster.consumer_requests.forwarding import (
    ForwardedAcks,
    ForwardedRequest,
    RequestForwarder,
)
from broker.cluster.peers.channels import CHANNEL_ACKS, CHANNEL_CONSUMER_REQUESTS
from raft import NodeId
from tests.support.cluster_fakes import run, turns

US, ONE, TWO = NodeId(1), NodeId(2), NodeId(3)


class Bench:
    def __init__(self) -> None:
        self.leaders: dict[int, NodeId | None] = {10: US, 20: ONE, 21: ONE, 30: TWO, 40: None}
        self.log: list[tuple[NodeId, bytes] | str] = []  # "interest", or what was sent
        self.taken: list[ForwardedRequest] = []
        self.taken_acks: list[ForwardedAcks] = []
        self.ack_frames: list[tuple[NodeId, bytes]] = []
        self.full = False
        self.errands = RequestForwarder(
            node=US,
            leader=self.leaders.get,
            send=self._send,
            take=self.taken.append,
            take_acks=self.taken_acks.append,
            before_send=lambda: self.log.append("interest"),
        )

    def _send(self, to: NodeId, channel: int, frame: bytes) -> bool:
        if channel == CHANNEL_ACKS and not self.full:
            self.ack_frames.append((to, frame))
        elif not self.full:
            assert channel == CHANNEL_CONSUMER_REQUESTS
            self.log.append((to, frame))
        return not self.full

    def frames(self) -> list[tuple[NodeId, list[ForwardedRequest]]]:
        """What crossed, as the other side reads it."""
        found = []
        for entry in self.log:
            if not isinstance(entry, str):
                to, frame = entry
                there = Bench()
                there.errands.received(US, frame)
                found.append((to, there.taken))
        return found


def errand(group: int, number: int, payload: bytes = b"") -> ForwardedRequest:
    return group, b"$JS.ACK.S.C.1.%d.1.1.0" % number, b"_INBOX.%d" % number, b"", payload


def test_our_own_streams_are_served_at_once() -> None:
    async def test() -> None:
        bench = Bench()
        assert bench.errands.add(errand(10, 1))
        assert bench.taken == [errand(10, 1)]
        await turns()
        assert bench.log == []

    run(test())


def test_one_frame_per_leader_and_turn_behind_the_interest() -> None:
    async def test() -> None:
        bench = Bench()
        for number in range(3):
            for group in (20, 30, 21):
                assert bench.errands.add(errand(group, number))
        assert bench.log == []
        await turns()
        # The inbox a pull request names must be known there before the request.
        assert bench.log[0] == "interest"
        assert bench.log.count("interest") == 1
        assert bench.frames() == [
            (ONE, [errand(group, number) for number in range(3) for group in (20, 21)]),
            (TWO, [errand(30, number) for number in range(3)]),
        ]
        bench.log.clear()
        await turns()
        assert bench.log == []
        bench.errands.add(errand(20, 9, b"+ACK"))
        await turns()
        assert bench.frames() == [(ONE, [errand(20, 9, b"+ACK")])]

    run(test())


def test_without_a_link_they_are_dropped_and_counted() -> None:
    async def test() -> None:
        bench = Bench()
        bench.full = True
        for number in range(3):
            bench.errands.add(errand(20, number))
        await turns()
        assert bench.errands.dropped == 3
        assert bench.frames() == []

    run(test())


def test_without_a_leader_they_are_held_until_there_is_one() -> None:
    async def test() -> None:
        bench = Bench()
        acks: ForwardedAcks = (40, b"c", [1, 2], [1, 2])
        assert bench.errands.add(errand(40, 1))
        bench.errands.add_acks(acks)
        assert bench.errands.add(errand(40, 2))
        assert bench.errands.add(errand(41, 3))
        await turns()
        assert (bench.log, bench.ack_frames) == ([], [])
        bench.leaders[40] = ONE
        bench.errands.release(40)
        bench.errands.release(40)  # once is enough
        await turns()
        assert bench.frames() == [(ONE, [errand(40, 1), errand(40, 2)])]
        other = Bench()
        other.errands.received_acks(US, bench.ack_frames[0][1])
        assert other.taken_acks == [acks]
        bench.leaders[41] = US
        bench.errands.forget(41)  # the stream was deleted
        bench.errands.release(41)
        assert bench.taken == []
        assert bench.errands.dropped == 0

    run(test())


def test_what_is_held_too_long_or_too_much_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(holding.time, "monotonic", lambda: now)
    monkeypatch.setattr(holding, "HELD_BYTES_MAX", 1300)
    bench = Bench()
    assert bench.errands.add(errand(40, 1, b"p" * 500))
    assert not bench.errands.add(errand(41, 2, b"p" * 500))
    bench.errands.add_acks((40, b"c", list(range(20)), list(range(20))))
    assert bench.errands.dropped == 1 + 20
    now += holding.HELD_S - 1
    assert bench.errands.add(errand(41, 3))
    now += 1
    assert bench.errands.add(errand(41, 4, b"p" * 300))  # in place of what is too old
    bench.leaders[40] = bench.leaders[41] = US
    bench.errands.release(40)
    bench.errands.release(41)
    assert bench.taken == [errand(41, 3), errand(41, 4, b"p" * 300)]
    assert bench.errands.dropped == 21


def test_waiting_pull_requests_of_a_lost_node_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(pulls.time, "monotonic", lambda: now)

    async def test() -> None:
        nonlocal now
        bench = Bench()

        def pull(group: int, reply: bytes, body: bytes) -> None:
            bench.errands.add((group, b"$JS.API.CONSUMER.MSG.NEXT.S.C", reply, b"", body))

        pull(20, b"waits", b'{"batch":5,"expires":10000000000}')
        pull(20, b"over", b'{"batch":5,"expires":1000000000}')
        pull(20, b"asks again", b'{"expires":1000000000}')
        pull(21, b"no end", b'{"batch":5}')
        pull(20, b"in no time", b'{"batch":5,"no_wait":true}')
        pull(20, b"odd", b'{"batch":')
        pull(20, b"at most one", b"1")
        pull(30, b"elsewhere", b'{"expires":10000000000}')
        pull(10, b"here", b'{"expires":10000000000}')  # we would be lost with it
        bench.errands.add(errand(20, 1, b"+ACK"))
        now += 2
        pull(20, b"asks again", b'{"expires":1000000000}')
        lost = bench.errands.pulls.lost(ONE)
        assert lost == [(20, b"waits"), (20, b"asks again"), (21, b"no end")]
        assert bench.errands.pulls.lost(ONE) == []
        assert bench.errands.pulls.lost(TWO) == [(30, b"elsewhere")]

    run(test())


def test_only_so_many_waiting_pull_requests_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(pulls.time, "monotonic", lambda: now)
    monkeypatch.setattr(pulls, "WAITING_MAX", 2)
    waiting = pulls.Pulls()
    for reply in (b"1", b"2", b"3"):
        waiting.sent(ONE, 20, reply, b'{"expires":1000000000}')
    now += 2
    waiting.sent(ONE, 20, b"4", b'{"expires":1000000000}')  # in place of those that are over
    assert waiting.lost(ONE) == [(20, b"4")]


def test_a_long_turn_sends_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TURN_MAX", 4)

    async def test() -> None:
        bench = Bench()
        for number in range(10):
            bench.errands.add(errand(20, number))
        assert [len(errands) for _, errands in bench.frames()] == [4, 4]
        await turns()
        assert [len(errands) for _, errands in bench.frames()] == [4, 4, 2]
        assert [e for _, errands in bench.frames() for e in errands] == [
            errand(20, number) for number in range(10)
        ]

    run(test())


def test_large_payloads_do_not_gather_into_a_frame_without_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TURN_BYTES_MAX", 1000)

    async def test() -> None:
        bench = Bench()
        for number in range(6):
            bench.errands.add(errand(20 if number % 2 else 30, number, b"p" * 400))
        await turns()
        assert sum(len(errands) for _, errands in bench.frames()) == 6
        sizes = [len(entry[1]) for entry in bench.log if not isinstance(entry, str)]
        assert max(sizes) < 1500
        bench.log.clear()
        for number in range(3):
            bench.errands.add(errand(20, number))
        assert bench.log == []  # the next turn gathers again

    run(test())


def test_a_frame_from_a_peer_is_taken_in_order_and_damage_is_refused() -> None:
    bench = Bench()
    for damaged in (b"", b"\xc1", b"\x91\x91\x01"):
        with pytest.raises(ValueError):  # noqa: PT011 - the transport ends the link on any
            bench.errands.received(ONE, damaged)
    assert bench.taken == []


def test_plain_acks_of_a_turn_cross_in_one_frame_per_leader() -> None:
    async def test() -> None:
        bench = Bench()
        here: ForwardedAcks = (10, b"c", [1, 2], [1, 2])
        there: list[ForwardedAcks] = [(20, b"c", [5], [1]), (21, b"d", [7, 9], [3, 4])]
        for acks in (here, *there):
            bench.errands.add_acks(acks)
        assert bench.taken_acks == [here]
        await turns()
        assert [to for to, _ in bench.ack_frames] == [ONE]
        other = Bench()
        other.errands.received_acks(US, bench.ack_frames[0][1])
        assert other.taken_acks == there
        bench.full = True
        bench.errands.add_acks(there[0])
        await turns()
        assert bench.errands.dropped == 1

    run(test())
