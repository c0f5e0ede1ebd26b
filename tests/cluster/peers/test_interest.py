"""Interest and routed messages between simulated nodes."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from broker.cluster.peers import peer_sink
from broker.cluster.peers.channels import CHANNEL_DELIVER, CHANNEL_INTEREST, CHANNEL_ROUTED
from broker.cluster.peers.interest import DeliverFrame
from broker.cluster.peers.peer_sink import RoutedFrame, encode_frame
from broker.wire import ProtocolViolation, PubRun
from raft import NodeId
from tests.support.cluster_fakes import Client, Net, pub_run, run, two


def rows(count: int) -> list[bytes]:
    return [b"%d" % i for i in range(count)]


def test_a_subscription_is_announced_and_gets_messages() -> None:
    async def test() -> None:
        net, here, there = await two()
        subscriber = there.client()
        there.subscribe(subscriber, b"a.*", b"7")
        await net.settle()
        here.router.publish_run(
            here.client(), PubRun.of([(b"a.b", b"r", b"NATS/1.0\r\n\r\n", b"x")])
        )
        await net.settle()
        assert subscriber.got == [(b"7", (b"a.b", b"r", b"NATS/1.0\r\n\r\n", b"x"))]

    run(test())


def test_interest_ends_with_the_last_subscription() -> None:
    async def test() -> None:
        net, here, there = await two()
        subs = [there.subscribe(there.client(), b"a") for _ in range(3)]
        await net.settle()
        assert net.crossed(CHANNEL_INTEREST) == 1  # further plain subscribers are not announced
        for sub in subs[:2]:
            there.unsubscribe(sub)
        await net.settle()
        assert net.crossed(CHANNEL_INTEREST) == 1
        assert here.router.has_interest(here.account(), b"a")
        there.unsubscribe(subs[2])
        await net.settle()
        assert not here.router.has_interest(here.account(), b"a")
        here.router.publish_run(here.client(), pub_run(b"a", b"x"))
        await net.settle()
        assert net.crossed() == 0

    run(test())


def test_accounts_are_isolated() -> None:
    async def test() -> None:
        net, here, there = await two()
        ours, others = there.client("A"), there.client("B")
        there.subscribe(ours, b"a")
        there.subscribe(others, b"a")
        await net.settle()
        here.router.publish_run(here.client("A"), pub_run(b"a", b"x"))
        await net.settle()
        assert (ours.payloads(), others.payloads()) == ([b"x"], [])

    run(test())


def test_a_message_crosses_once_however_many_patterns_match() -> None:
    async def test() -> None:
        net, here, there = await two()
        subscriber = there.client()
        for number, pattern in enumerate((b"a.b", b"a.*", b"a.>", b">")):
            there.subscribe(subscriber, pattern, b"%d" % number)
        for queue in (b"q1", b"q2"):
            there.subscribe(subscriber, b"a.b", queue, queue=queue)
        await net.settle()
        here.router.publish_run(here.client(), pub_run(b"a.b", *rows(20)))
        await net.settle()
        assert net.crossed() == 1
        for sid in (b"0", b"1", b"2", b"3", b"q1", b"q2"):
            assert subscriber.payloads(sid) == rows(20)

    run(test())


def test_a_message_published_by_the_server_crosses_once_too() -> None:
    async def test() -> None:
        net, here, there = await two()
        subscriber = there.client()
        there.subscribe(subscriber, b"a", b"plain")
        there.subscribe(subscriber, b"a", b"q", queue=b"q")
        await net.settle()
        # The same objects again are another message.
        for _ in range(2):
            here.router.publish(here.account(), b"a", b"", b"", b"x")
        await net.settle()
        assert subscriber.payloads(b"plain") == subscriber.payloads(b"q") == [b"x", b"x"]
        assert here.interest.sinks[there.id].messages_out == 2
        assert here.interest.sinks[there.id].bytes_out == 2

    run(test())


def test_equal_messages_of_two_accounts_are_not_merged() -> None:
    async def test() -> None:
        net, here, there = await two()
        first, second = there.client("A"), there.client("B")
        there.subscribe(first, b"a")
        there.subscribe(second, b"a", queue=b"q")
        await net.settle()
        for name in ("A", "B"):
            here.router.publish(here.account(name), b"a", b"", b"", b"x")
        await net.settle()
        assert (first.payloads(), second.payloads()) == ([b"x"], [b"x"])

    run(test())


@pytest.mark.parametrize("seed", range(5))
def test_rows_for_queue_groups_and_plain_subscriptions_cross_once(seed: int) -> None:
    """Groups with members on both nodes get slices of the run."""

    async def test() -> None:
        random.seed(seed)
        net, here, there = await two()
        plain, local, remote = there.client(), here.client(), there.client()
        there.subscribe(plain, b"a")
        for queue in (b"q1", b"q2"):
            here.subscribe(local, b"a", queue, queue=queue)
            for _ in range(2):
                there.subscribe(remote, b"a", queue, queue=queue)
        await net.settle()
        here.router.publish_run(here.client(), pub_run(b"a", *rows(31)))
        await net.settle()
        assert plain.payloads() == rows(31)
        for queue in (b"q1", b"q2"):
            both = Counter(local.payloads(queue)) + Counter(remote.payloads(queue))
            assert both == Counter(rows(31)), f"each row once in {queue!r}, seed {seed}"
        assert here.interest.sinks[there.id].messages_out == 31

    run(test())


def test_queue_groups_are_balanced_by_members_across_nodes() -> None:
    async def test() -> None:
        random.seed(11)
        net, here, there = await two()
        local, remote = here.client(), there.client()
        here.subscribe(local, b"a", queue=b"q")
        subs = []
        for i in range(3):
            subs.append(there.subscribe(remote, b"a", b"%d" % i, queue=b"q"))
            await net.settle()
        for _ in range(400):
            here.router.publish_run(here.client(), pub_run(b"a", b"x"))
            await net.settle()
        assert len(local.got) + len(remote.got) == 400
        assert 240 < len(remote.got) < 360  # three members of four
        for sub in subs:
            there.unsubscribe(sub)
        await net.settle()
        here.router.publish_run(here.client(), pub_run(b"a", *rows(10)))
        await net.settle()
        assert len(local.got) + len(remote.got) == 410
        assert len(remote.got) < 361

    run(test())


def test_routed_messages_go_one_hop_and_to_clients_only() -> None:
    async def test() -> None:
        net = Net(3)
        net.connect()
        subscribers = [node.client() for node in net.nodes]
        for node, subscriber in zip(net.nodes, subscribers, strict=True):
            node.subscribe(subscriber, b"a")
        await net.settle()
        net.log.clear()
        net.nodes[0].router.publish_run(net.nodes[0].client(), pub_run(b"a", b"x"))
        await net.settle()
        assert [subscriber.payloads() for subscriber in subscribers] == [[b"x"]] * 3
        assert {(source, to) for source, to, _ in net.log} == {(1, 2), (1, 3)}

    run(test())


def test_order_is_kept_over_subjects_and_turns() -> None:
    async def test() -> None:
        net, here, there = await two()
        subscriber = there.client()
        there.subscribe(subscriber, b">")
        await net.settle()
        sent: list[bytes] = []
        for turn in range(5):
            for subject in (b"a", b"b", b"a"):
                sent.append(b"%d-%b-%d" % (turn, subject, len(sent)))
                here.router.publish_run(here.client(), pub_run(subject, sent[-1]))
            await net.settle()
        assert subscriber.payloads() == sent
        assert net.crossed() == 5  # one frame per turn

    run(test())


def test_a_routed_frame_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_sink, "ROUTED_BYTES_MAX", 1000)

    async def test() -> None:
        net, here, there = await two()
        subscriber = there.client()
        there.subscribe(subscriber, b"a")
        await net.settle()
        for i in range(10):
            here.router.publish_run(here.client(), pub_run(b"a", b"%d" % i * 400))
        await net.settle()
        assert len(subscriber.got) == 10
        assert net.crossed() == 4  # three at a time

    run(test())


# -- order between interest and what depends on it -------------------------------------------------


def test_the_interest_in_an_inbox_arrives_before_the_request_that_names_it() -> None:
    """Even if both happen in one turn and the request comes first."""

    async def test() -> None:
        net, here, there = await two()
        service = there.client()
        there.subscribe(service, b"svc")
        await net.settle()
        net.log.clear()
        client = here.client()
        # The request is queued first, so its flush is scheduled before that of the interest.
        here.router.publish_run(client, pub_run(b"svc", b"?", reply=b"_INBOX.1"))
        here.subscribe(client, b"_INBOX.1", b"9")
        await net.settle()
        assert [channel for source, _, channel in net.log if source == here.id] == [
            CHANNEL_INTEREST,
            CHANNEL_ROUTED,
        ]
        reply = service.got[0][1][1]
        there.router.publish_run(service, pub_run(reply, b"!"))
        await net.settle()
        assert client.payloads(b"9") == [b"!"]

    run(test())


def test_changes_of_one_turn_are_one_frame() -> None:
    async def test() -> None:
        net, here, there = await two()
        for i in range(50):
            there.subscribe(there.client(), b"s.%d" % i)
        there.unsubscribe(there.subscribe(there.client(), b"brief"))
        await net.settle()
        assert net.crossed(CHANNEL_INTEREST) == 1
        assert len(here.interest.sinks[there.id].subscriptions) == 50

    run(test())


# -- frames --------------------------------------------------------------------------------------


def test_messages_delivered_under_another_subject() -> None:
    async def test() -> None:
        net, here, there = await two()
        plain, member = there.client(), there.client()
        there.subscribe(plain, b"d", b"1")
        for _ in range(2):
            there.subscribe(member, b"d", b"2", queue=b"q")
        here.subscribe(here.client(), b"d")
        here.subscribe(here.client(), b"d", queue=b"q")
        await net.settle()
        net.log.clear()
        away = Client(there.account())
        there.subscribe(away, b"d", b"3", queue=b"other")
        messages = [(b"orders.1", b"$JS.ACK.x", b"", b"one"), (b"orders.2", b"", b"", b"two")]
        for wanted in (True, False):
            frame = DeliverFrame("$G", b"d", wanted, [b"q"], messages)
            there.interest.received_deliver(here.id, encode_frame(frame))
        assert plain.got == [(b"1", message) for message in messages]
        assert member.got == [(b"2", message) for message in messages] * 2
        assert away.got == []
        await net.settle()
        assert net.crossed(CHANNEL_DELIVER) == net.crossed(CHANNEL_ROUTED) == 0  # one hop

    run(test())


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        encode_frame([True]),
        encode_frame(["yes", []]),
        encode_frame([False, [["$G", b"a", b""]]]),
    ],
)
def test_a_damaged_interest_frame_is_refused(frame: bytes) -> None:
    net = Net(1)
    with pytest.raises(ValueError):  # noqa: PT011 - the transport closes the link on any ValueError
        net.nodes[0].interest.received_interest(NodeId(9), frame)


@pytest.mark.parametrize("protocol", [b"SUB a 1\r\n", b"PING\r\n"])
def test_a_routed_frame_holds_publishes_only(protocol: bytes) -> None:
    net = Net(1)
    frame = encode_frame(RoutedFrame("$G", True, [], protocol))
    with pytest.raises(ValueError, match="not a publish"):
        net.nodes[0].interest.received_routed(NodeId(9), frame)


def test_a_routed_frame_with_a_protocol_error_is_refused() -> None:
    net = Net(1)
    frame = encode_frame(RoutedFrame("$G", True, [], b"NONSENSE\r\n"))
    with pytest.raises(ProtocolViolation):
        net.nodes[0].interest.received_routed(NodeId(9), frame)
