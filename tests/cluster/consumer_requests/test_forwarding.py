"""Acks and pull requests are forwarded to leaders once, in order, in few frames."""

from __future__ import annotations

import pytest

from broker.cluster.consumer_requests import forwarding as module
from broker.cluster.consumer_requests import waiting_for_leader, waiting_pulls
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
        self.log: list[tuple[NodeId, bytes] | str] = []  # "interest", or a frame that was sent
        self.taken: list[ForwardedRequest] = []
        self.lost: list[ForwardedRequest] = []
        self.taken_acks: list[ForwardedAcks] = []
        self.ack_frames: list[tuple[NodeId, bytes]] = []
        self.full = False
        self.forwarder = RequestForwarder(
            node=US,
            leader=self.leaders.get,
            send=self._send,
            take=self.taken.append,
            take_acks=self.taken_acks.append,
            lost=self.lost.append,
            before_send=lambda: self.log.append("interest"),
            account_of=lambda group: "A" if group < 50 else "B",
        )

    def _send(self, to: NodeId, channel: int, frame: bytes) -> bool:
        if channel == CHANNEL_ACKS and not self.full:
            self.ack_frames.append((to, frame))
        elif not self.full:
            assert channel == CHANNEL_CONSUMER_REQUESTS
            self.log.append((to, frame))
        return not self.full

    def frames(self) -> list[tuple[NodeId, list[ForwardedRequest]]]:
        """The frames that were sent, as the receiver decodes them."""
        found = []
        for entry in self.log:
            if not isinstance(entry, str):
                to, frame = entry
                there = Bench()
                there.forwarder.received(US, frame)
                found.append((to, there.taken))
        return found


def request(group: int, number: int, payload: bytes = b"") -> ForwardedRequest:
    return group, b"$JS.ACK.S.C.1.%d.1.1.0" % number, b"_INBOX.%d" % number, b"", payload


DEEP = b'{"x":' + b"[" * 100_000


def test_a_pull_request_that_is_nested_too_deep_waits_for_nothing() -> None:
    assert waiting_pulls.pull_expiry_s(DEEP, now_s=1.0) is None


def test_a_request_that_fails_here_does_not_end_the_link_it_came_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The link carries the requests of all accounts, and Raft."""
    bench = Bench()
    requests = [request(10, number) for number in range(3)]

    def take(one: ForwardedRequest) -> None:
        if one == requests[1]:
            raise RecursionError("of a client")
        bench.taken.append(one)

    bench.forwarder.take = take
    bench.forwarder.received(ONE, module._encode(requests))
    assert bench.taken == [requests[0], requests[2]]
    assert "a request from another node failed" in caplog.text


def test_streams_led_here_are_served_at_once() -> None:
    async def test() -> None:
        bench = Bench()
        assert bench.forwarder.add(request(10, 1))
        assert bench.taken == [request(10, 1)]
        await turns()
        assert bench.log == []

    run(test())


def test_one_frame_per_leader_and_turn_follows_the_interest() -> None:
    async def test() -> None:
        bench = Bench()
        for number in range(3):
            for group in (20, 30, 21):
                assert bench.forwarder.add(request(group, number))
        assert bench.log == []
        await turns()
        # The leader must know the inbox that a pull request names.
        assert bench.log[0] == "interest"
        assert bench.log.count("interest") == 1
        assert bench.frames() == [
            (ONE, [request(group, number) for number in range(3) for group in (20, 21)]),
            (TWO, [request(30, number) for number in range(3)]),
        ]
        bench.log.clear()
        await turns()
        assert bench.log == []
        bench.forwarder.add(request(20, 9, b"+ACK"))
        await turns()
        assert bench.frames() == [(ONE, [request(20, 9, b"+ACK")])]

    run(test())


def test_requests_without_a_link_are_dropped_and_counted() -> None:
    async def test() -> None:
        bench = Bench()
        bench.full = True
        for number in range(3):
            bench.forwarder.add(request(20, number))
        await turns()
        assert bench.forwarder.dropped == 3
        assert bench.frames() == []
        assert bench.lost == [request(20, number) for number in range(3)]

    run(test())


def test_requests_without_a_leader_are_held_until_there_is_one() -> None:
    async def test() -> None:
        bench = Bench()
        acks: ForwardedAcks = (40, b"c", [1, 2], [1, 2])
        assert bench.forwarder.add(request(40, 1))
        bench.forwarder.add_acks(acks)
        assert bench.forwarder.add(request(40, 2))
        assert bench.forwarder.add(request(41, 3))
        await turns()
        assert (bench.log, bench.ack_frames) == ([], [])
        bench.leaders[40] = ONE
        bench.forwarder.release(40)
        bench.forwarder.release(40)  # nothing is left to release
        await turns()
        assert bench.frames() == [(ONE, [request(40, 1), request(40, 2)])]
        other = Bench()
        other.forwarder.received_acks(US, bench.ack_frames[0][1])
        assert other.taken_acks == [acks]
        bench.leaders[41] = US
        bench.forwarder.forget(41)  # the stream was deleted
        bench.forwarder.release(41)
        assert bench.taken == []
        assert bench.forwarder.dropped == 0

    run(test())


def test_requests_beyond_the_age_or_size_bound_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    monkeypatch.setattr(waiting_for_leader, "HELD_BYTES_MAX", 1300)
    bench = Bench()
    assert bench.forwarder.add(request(40, 1, b"p" * 500))
    assert not bench.forwarder.add(request(41, 2, b"p" * 500))
    bench.forwarder.add_acks((40, b"c", list(range(20)), list(range(20))))
    assert bench.forwarder.dropped == 1 + 20
    now += waiting_for_leader.HELD_S - 1
    assert bench.forwarder.add(request(41, 3))
    now += 1
    assert bench.forwarder.add(request(41, 4, b"p" * 300))  # takes the room of expired ones
    bench.leaders[40] = bench.leaders[41] = US
    bench.forwarder.release(40)
    bench.forwarder.release(41)
    assert bench.taken == [request(41, 3), request(41, 4, b"p" * 300)]
    assert bench.forwarder.dropped == 21
    # The clients of the refused one, and of the one that was dropped for another, are told.
    assert bench.lost == [request(41, 2, b"p" * 500), request(40, 1, b"p" * 500)]


def test_an_account_that_fills_the_queue_gives_way_to_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its streams may be without a leader for long. The other's requests are held as well."""
    monkeypatch.setattr(waiting_for_leader, "HELD_BYTES_MAX", 10_000)
    bench = Bench()
    greedy = [request(40 + number % 2, number, b"p" * 500) for number in range(10, 30)]
    held = [one for one in greedy if bench.forwarder.add(one)]
    assert len(held) == len(greedy) - len(bench.lost) < len(greedy)
    refused = len(bench.lost)
    modest = [request(50, number, b"p" * 500) for number in range(10, 30)]
    kept = [one for one in modest if bench.forwarder.add(one)]
    assert len(kept) == len(held) // 2, "each has half of the queue"
    bench.leaders.update({group: US for group in (40, 41, 50)})
    for group in (40, 41, 50):
        bench.forwarder.release(group)
    assert [one for one in bench.taken if one[0] == 50] == kept
    assert len(bench.taken) == len(held)
    told = [one for one in bench.lost[refused:] if one[0] < 50]
    assert len(told) == len(kept), "the clients of those that gave way are told"


def test_held_requests_leave_when_the_link_to_their_leader_is_back() -> None:
    bench = Bench()
    acks: ForwardedAcks = (41, b"c", [1, 2], [1, 2])
    assert bench.forwarder.add(request(40, 1))
    bench.forwarder.add_acks(acks)
    bench.leaders[40] = US
    bench.forwarder.link_restored()
    assert (bench.taken, bench.taken_acks) == ([request(40, 1)], [])
    bench.leaders[41] = US
    bench.forwarder.link_restored()
    assert bench.taken_acks == [acks]


def test_requests_that_waited_too_long_for_a_leader_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    bench = Bench()
    assert bench.forwarder.add(request(40, 1))
    now += waiting_for_leader.HELD_S
    assert bench.forwarder.add(request(40, 2))
    bench.leaders[40] = US
    bench.forwarder.release(40)
    assert bench.taken == [request(40, 2)]
    assert bench.lost == [request(40, 1)]


def test_pull_requests_that_waited_at_a_lost_node_are_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)

    async def test() -> None:
        nonlocal now
        bench = Bench()

        def pull(group: int, reply: bytes, body: bytes) -> None:
            bench.forwarder.add((group, b"$JS.API.CONSUMER.MSG.NEXT.S.C", reply, b"", body))

        pull(20, b"waits", b'{"batch":5,"expires":10000000000}')
        pull(20, b"expired", b'{"batch":5,"expires":1000000000}')
        pull(20, b"asks again", b'{"expires":1000000000}')
        pull(21, b"no expiry", b'{"batch":5}')
        pull(20, b"no wait", b'{"batch":5,"no_wait":true}')
        pull(20, b"malformed", b'{"batch":')
        pull(20, b"batch only", b"1")
        pull(30, b"elsewhere", b'{"expires":10000000000}')
        pull(10, b"here", b'{"expires":10000000000}')  # it does not wait at another node
        bench.forwarder.add(request(20, 1, b"+ACK"))
        now += 2
        pull(20, b"asks again", b'{"expires":1000000000}')
        lost = bench.forwarder.lost_pulls(ONE)
        assert lost == [(20, b"waits"), (20, b"asks again"), (21, b"no expiry")]
        assert bench.forwarder.lost_pulls(ONE) == []
        assert bench.forwarder.lost_pulls(TWO) == [(30, b"elsewhere")]

    run(test())


def test_the_number_of_tracked_pull_requests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_pulls, "WAITING_MAX", 2)
    pulls = waiting_pulls.WaitingPulls()
    one_second = b'{"expires":1000000000}'
    for reply in (b"1", b"2", b"3"):
        pulls.sent(ONE, 20, reply, one_second, now_s=100.0)
    pulls.sent(ONE, 20, b"4", one_second, now_s=102.0)  # takes the room of expired ones
    assert pulls.lost(ONE, now_s=102.0) == [(20, b"4")]


def test_a_long_turn_sends_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TURN_MAX", 4)

    async def test() -> None:
        bench = Bench()
        for number in range(10):
            bench.forwarder.add(request(20, number))
        assert [len(requests) for _, requests in bench.frames()] == [4, 4]
        await turns()
        assert [len(requests) for _, requests in bench.frames()] == [4, 4, 2]
        assert [e for _, requests in bench.frames() for e in requests] == [
            request(20, number) for number in range(10)
        ]

    run(test())


def test_the_bytes_of_a_frame_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TURN_BYTES_MAX", 1000)

    async def test() -> None:
        bench = Bench()
        for number in range(6):
            bench.forwarder.add(request(20 if number % 2 else 30, number, b"p" * 400))
        await turns()
        assert sum(len(requests) for _, requests in bench.frames()) == 6
        sizes = [len(entry[1]) for entry in bench.log if not isinstance(entry, str)]
        assert max(sizes) < 1500
        bench.log.clear()
        for number in range(3):
            bench.forwarder.add(request(20, number))
        assert bench.log == []  # the next turn collects again

    run(test())


def test_a_damaged_frame_is_refused() -> None:
    bench = Bench()
    for damaged in (b"", b"\xc1", b"\x91\x91\x01"):
        with pytest.raises(ValueError):  # noqa: PT011 - the transport closes the link on any ValueError
            bench.forwarder.received(ONE, damaged)
    assert bench.taken == []


def test_plain_acks_of_a_turn_are_one_frame_per_leader() -> None:
    async def test() -> None:
        bench = Bench()
        here: ForwardedAcks = (10, b"c", [1, 2], [1, 2])
        there: list[ForwardedAcks] = [(20, b"c", [5], [1]), (21, b"d", [7, 9], [3, 4])]
        for acks in (here, *there):
            bench.forwarder.add_acks(acks)
        assert bench.taken_acks == [here]
        await turns()
        assert [to for to, _ in bench.ack_frames] == [ONE]
        other = Bench()
        other.forwarder.received_acks(US, bench.ack_frames[0][1])
        assert other.taken_acks == there
        bench.full = True
        bench.forwarder.add_acks(there[0])
        await turns()
        assert bench.forwarder.dropped == 1

    run(test())
