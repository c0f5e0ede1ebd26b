"""Leaf nodes of different nodes of a cluster: told to the other nodes, and no message twice."""

from __future__ import annotations

from typing import Any

from broker.server.client.client_socket import ClientSocket
from broker.server.leaf.leaf_rules import hub_rules
from broker.server.leaf.leaf_sink import LeafSink
from broker.subjects import SinkKind
from broker.wire import PubRun
from tests.support.cluster_fakes import MeshNode, pub_run, run, two


class _Unsent:
    bytes = 0


class _Outbound:
    """Keeps what would be sent."""

    closed = False
    queued_bytes = 0
    stall_above = max_pending = 1 << 30
    unsent = _Unsent()

    def __init__(self) -> None:
        self.sent = b""

    def queue(self, data: bytes) -> None:
        self.sent += data


def leaf(
    node: MeshNode, cluster: str, *, kind: SinkKind = SinkKind.LEAF
) -> tuple[LeafSink, _Outbound]:
    outbound: Any = _Outbound()
    sink = LeafSink(
        99, node.account(), node.router, kind=kind, cluster=cluster, outbound=outbound,
        reading=ClientSocket(), limits=hub_rules(None, (), domain="", system=False),
    )  # fmt: skip
    return sink, outbound


def test_clients_of_every_node_reach_a_leaf_node() -> None:
    async def test() -> None:
        net, here, there = await two()
        sink, outbound = leaf(there, "C")
        sink.subscribe(b"a", b"", 1)
        sink.subscribe(b"w", b"q", 3)
        await net.settle()
        client = here.client()
        here.router.publish_run(
            client, PubRun.of([(b"a", b"r", b"", b"x"), (b"w", b"", b"", b"y")])
        )
        await net.settle()
        assert outbound.sent == b"LMSG a r 1\r\nx\r\nLMSG w | q 1\r\ny\r\n"
        sink.unsubscribe(b"a", b"")
        sink.unsubscribe(b"w", b"q")
        await net.settle()
        assert not here.router.has_interest(here.account(), b"a")
        assert not here.router.has_interest(here.account(), b"w")

    run(test())


def test_a_message_does_not_return_to_the_cluster_of_its_leaf_node_over_another_node() -> None:
    async def test() -> None:
        net, here, there = await two()
        publisher, _ = leaf(here, "C")
        same, same_cluster = leaf(there, "C")
        other, other_cluster = leaf(there, "D")
        client = there.client()
        there.subscribe(client, b"a")
        for sink in (same, other):
            sink.subscribe(b"a", b"", 1)
        await net.settle()
        here.router.publish_run(publisher, pub_run(b"a", b"x"))
        await net.settle()
        assert client.payloads() == [b"x"]
        assert other_cluster.sent == b"LMSG a 1\r\nx\r\n"
        assert same_cluster.sent == b""

    run(test())


def test_messages_of_a_hub_stay_on_the_node_that_got_them() -> None:
    async def test() -> None:
        net, here, there = await two()
        hub, _ = leaf(here, "H", kind=SinkKind.HUB)
        far, near = there.client(), here.client()
        there.subscribe(far, b"a")
        here.subscribe(near, b"a")
        hub.subscribe(b"up", b"", 1)
        await net.settle()
        assert not there.router.has_interest(there.account(), b"up")
        assert ("$G", b"up") in here.changes, "consumers here notice subscribers behind the hub"
        here.router.publish_run(hub, pub_run(b"a", b"x"))
        await net.settle()
        assert near.payloads() == [b"x"]
        assert far.payloads() == []

    run(test())


def test_a_stored_message_keeps_its_subject_on_the_way_to_another_node() -> None:
    """It comes from a stream behind a leaf node, for a consumer at another node."""

    async def test() -> None:
        net, here, there = await two()
        publisher, _ = leaf(here, "C")
        client = there.client()
        there.subscribe(client, b"_INBOX.1")
        sink, outbound = leaf(there, "D")
        sink.subscribe(b"_INBOX.*", b"", 1)
        await net.settle()
        here.router.publish(
            here.account(), b"s.1", b"$JS.ACK.S.C", b"", b"x", deliver_to=b"_INBOX.1",
            publisher=publisher,
        )  # fmt: skip
        await net.settle()
        assert client.got == [(b"1", (b"s.1", b"$JS.ACK.S.C", b"", b"x"))]
        assert outbound.sent == b"LMSG _INBOX.1 $JS.ACK.S.C@s.1 1\r\nx\r\n"

    run(test())
