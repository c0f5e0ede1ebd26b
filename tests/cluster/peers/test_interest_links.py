"""Interest while links go up and down and their queues are full."""

from __future__ import annotations

import pytest

from broker.cluster.peers.interest import ANNOUNCE_RETRY_S, InterestFrame
from broker.cluster.peers.peer_sink import encode_frame
from tests.support.cluster_fakes import ClockedLoop, Net, pub_run, run, run_clocked, two


def test_subscriptions_from_before_and_after_the_first_peer_are_announced() -> None:
    async def test() -> None:
        net = Net(2)
        here, there = net.nodes
        before, after = there.client(), there.client()
        there.subscribe(before, b"before")
        await net.settle()
        net.connect()
        await net.settle()
        there.subscribe(after, b"after")
        await net.settle()
        for subject in (b"before", b"after"):
            here.router.publish_run(here.client(), pub_run(subject, b"x"))
        await net.settle()
        assert (before.payloads(), after.payloads()) == ([b"x"], [b"x"])

    run(test())


def test_a_node_without_peers_collects_no_changes() -> None:
    async def test() -> None:
        net = Net(1)
        node = net.nodes[0]
        for i in range(100):
            node.unsubscribe(node.subscribe(node.client(), b"_INBOX.%d" % i))
        await net.settle()
        assert not node.interest._changed
        assert not node.interest._members

    run(test())


def test_a_reconnect_withdraws_only_what_is_gone() -> None:
    async def test() -> None:
        net, here, there = await two()
        gone = there.subscribe(there.client(), b"gone")
        there.subscribe(there.client(), b"stays")
        await net.settle()
        net.link_down(there, here)
        there.unsubscribe(gone)
        there.subscribe(there.client(), b"new")
        await net.settle()
        assert here.router.has_interest(here.account(), b"gone")
        here.changes.clear()
        net.link_up(there, here)
        await net.settle()
        found = {
            s for s in (b"gone", b"stays", b"new") if here.router.has_interest(here.account(), s)
        }
        assert found == {b"stays", b"new"}
        # No change for what stayed: push consumers would be interrupted.
        assert here.changes == [("$G", b"gone"), ("$G", b"new")]

    run(test())


def test_the_interest_of_a_lost_peer_is_withdrawn() -> None:
    async def test() -> None:
        net, here, there = await two()
        there.subscribe(there.client(), b"a")
        there.subscribe(there.client(), b"b", queue=b"q")
        await net.settle()
        here.changes.clear()
        net.link_down(here, there)
        assert not here.router.has_interest(here.account(), b"a")
        assert not here.router.has_interest(here.account(), b"b", queue=b"q")
        assert here.changes == [("$G", b"a"), ("$G", b"b")]
        # A frame that arrives late has no effect.
        late = InterestFrame(reset=False, changes=[("$G", b"late", b"", 1)])
        here.interest.received_interest(there.id, encode_frame(late))
        assert not here.router.has_interest(here.account(), b"late")

    run(test())


@pytest.mark.parametrize("broken", [0, 1])
def test_interest_is_restored_after_one_direction_was_broken(broken: int) -> None:
    async def test() -> None:
        net, here, there = await two()
        here.subscribe(here.client(), b"ours")
        there.subscribe(there.client(), b"theirs")
        await net.settle()
        one, other = (here, there) if broken == 0 else (there, here)
        net.link_down(one, other)
        await net.settle()
        net.link_up(one, other)
        await net.settle()
        assert here.router.has_interest(here.account(), b"theirs")
        assert there.router.has_interest(there.account(), b"ours")

    run(test())


def test_links_may_come_up_in_any_order() -> None:
    async def test() -> None:
        for first in (0, 1):
            net = Net(2)
            one, other = net.nodes[first], net.nodes[1 - first]
            one.subscribe(one.client(), b"one")
            other.subscribe(other.client(), b"other")
            net.link_up(one, other)
            await net.settle()
            net.link_up(other, one)
            await net.settle()
            assert other.router.has_interest(other.account(), b"one")
            assert one.router.has_interest(one.account(), b"other")

    run(test())


def test_a_full_queue_delays_interest_but_loses_none() -> None:
    async def test(loop: ClockedLoop) -> None:
        net = Net(2)
        net.connect()
        await net.settle()
        here, there = net.nodes
        kept = there.subscribe(there.client(), b"kept")
        brief = there.subscribe(there.client(), b"brief")
        await net.settle()
        net.full.add((there.id, here.id))
        there.unsubscribe(brief)
        there.subscribe(there.client(), b"new")
        await net.settle()
        there.subscribe(there.client(), b"newer")
        await loop.advance(ANNOUNCE_RETRY_S * 2)
        await net.settle()
        assert not here.router.has_interest(here.account(), b"new")
        net.full.clear()
        await loop.advance(ANNOUNCE_RETRY_S * 2)
        await net.settle()
        found = {
            s
            for s in (b"kept", b"brief", b"new", b"newer")
            if here.router.has_interest(here.account(), s)
        }
        assert found == {b"kept", b"new", b"newer"}
        assert kept.weight == 1
        assert there.interest._retry_timer is None

    run_clocked(test)


def test_a_full_queue_at_the_start_delays_everything() -> None:
    async def test(loop: ClockedLoop) -> None:
        net = Net(2)
        here, there = net.nodes
        there.subscribe(there.client(), b"a")
        net.full.add((there.id, here.id))
        net.connect()
        await net.settle()
        net.full.clear()
        await loop.advance(ANNOUNCE_RETRY_S * 2)
        await net.settle()
        assert here.router.has_interest(here.account(), b"a")

    run_clocked(test)


def test_a_peer_that_learns_our_interest_late_is_reported() -> None:
    """What was sent there before may have been dropped: its node did not know our inboxes."""

    async def test() -> None:
        net, here, there = await two()
        asked: list[int] = []
        here.interest.on_asked.append(asked.append)
        here.subscribe(here.client(), b"inbox")
        await net.settle()
        assert asked == []
        net.link_down(there, here)
        net.link_up(there, here)
        await net.settle()
        assert asked == [there.id]
        assert there.router.has_interest(there.account(), b"inbox")

    run(test())
