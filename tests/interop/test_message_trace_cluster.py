"""Traces across nodes: every server sends its part, as in a cluster of nats-server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from broker.local import LocalCluster, LocalNode
from tests.support.clusters import nats_server, run
from tests.support.trace_rig import Client

DEST = "Nats-Trace-Dest: t"
ONLY = DEST + "|Nats-Trace-Only: true"
LINKING = (b"link", b"last")  # what `linked` publishes


@pytest.fixture(scope="module")
def their_three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    place = tmp_path_factory.mktemp("reference")
    with LocalCluster(place, size=3, name="three", command=nats_server()) as cluster:
        yield cluster


async def opened(node: LocalNode, name: str, *subjects: str) -> Client:
    client = await Client.open(node.client_port, "", name)
    for sid, subject in enumerate(subjects, 1):
        client.send(f"SUB {subject} {sid}\r\n")
    await client.flush()
    return client


async def linked(publisher: Client, subject: str, subscriber: Client) -> None:
    """Wait until messages of the publisher reach the subscriber."""
    while not subscriber.heard:
        publisher.send(f"PUB {subject} 4\r\nlink\r\n")
        await publisher.flush()
        await subscriber.flush()
    # Messages still in flight arrive before this one, on every link.
    publisher.send(f"PUB {subject} 4\r\nlast\r\n")
    while subscriber.heard[-1][2] != b"last":
        await subscriber.operation()
    subscriber.heard.clear()


async def traced(cluster: LocalCluster, headers: str) -> tuple[list[Any], list[Any]]:
    """The three parts of one trace by server, and the messages of the subscribers."""
    one, two, three = cluster.nodes
    tracer = await opened(one, "tracer", "t")
    plain = await opened(two, "plain", "p.x", "p.*")
    member = await opened(three, "member", "p.> group")
    publisher = await opened(one, "publisher")
    clients = [tracer, plain, member, publisher]
    for subscriber in (plain, member):
        await linked(publisher, "p.x", subscriber)
        await linked(subscriber, "t", tracer)
    publisher.publish("p.x", headers, "traced")
    while len(tracer.heard) < 3:
        await tracer.operation()
    publisher.send("PUB p.x 3\r\nend\r\n")
    for subscriber, copies in ((plain, 2), (member, 1)):
        while sum(payload == b"end" for _, _, payload in subscriber.heard) < copies:
            await subscriber.operation()
    heard = [
        [subject, payload]
        for subscriber in (plain, member)
        for subject, _, payload in subscriber.heard
        if payload not in LINKING  # those for one subscriber may reach another one late
    ]
    for client in clients:
        client.close()
    return comparable([json.loads(payload) for _, _, payload in tracer.heard]), heard


def comparable(parts: list[dict[str, Any]]) -> list[Any]:
    """The numbering of hops is not specified: replace numbers with the names of the servers."""
    parts.sort(key=lambda part: str(part["server"]["name"]))
    egress = [event for event in parts[0]["events"] if event["type"] == "eg"]
    leads_to = {event["hop"]: event["name"] for event in egress}
    shown = []
    for part in parts:
        for event in part["events"]:
            del event["ts"], event["cid"]
            if "hop" in event:
                event["hop"] = leads_to[event["hop"]]
        hop = part["request"]["header"].pop("Nats-Trace-Hop", None)
        header = part["request"]["header"], [leads_to[number] for number in hop or ()]
        events = sorted(part["events"], key=json.dumps)
        shown.append([part["server"]["name"], header, part.get("hops"), events])
    return shown


@pytest.mark.parametrize("headers", [DEST, ONLY])
def test_every_node_sends_its_part_of_the_trace(
    three: LocalCluster, their_three: LocalCluster, headers: str
) -> None:
    ours = run(lambda: traced(three, headers))
    assert ours == run(lambda: traced(their_three, headers))
    parts, heard = ours
    assert [name for name, *_ in parts] == ["three-1", "three-2", "three-3"]
    assert len(heard) == (6 if headers == DEST else 3)
