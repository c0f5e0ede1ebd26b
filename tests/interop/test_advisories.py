"""Advisories and metrics of a running server: sent, complete, and valid by their schemas."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import StreamConfig

from broker.local import LocalCluster
from tests.support.clusters import connect, eventually, leader_of, run
from tests.support.interop import Body, api, check

EXPLICIT = {"durable_name": "C", "name": "C", "ack_policy": "explicit"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    place: Path = tmp_path_factory.mktemp("advisories")
    with LocalCluster(place, size=1, name="adv") as running:
        yield running


class Listener:
    """Receives events on one subject and checks each against its schema."""

    def __init__(self, subscription: Any) -> None:
        self.subscription = subscription

    @classmethod
    async def on(cls, client: Any, subject: str) -> Listener:
        subscription = await client.subscribe(subject)
        await client.flush()
        return cls(subscription)

    async def next(self) -> Body:
        message = await self.subscription.next_msg(timeout=20)
        body: Body = json.loads(message.data)
        check(body)
        assert len(body["id"]) == 22
        assert body["timestamp"].endswith("Z")
        return body


async def fresh(client: Any, name: str) -> None:
    await api(client, f"STREAM.DELETE.{name}")
    made = await api(client, f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"]})
    assert "error" not in made


async def consumer(client: Any, stream: str, **config: object) -> Body:
    body = {"stream_name": stream, "config": EXPLICIT | config}
    made = await api(client, f"CONSUMER.CREATE.{stream}.C", body)
    assert "error" not in made, made
    return made


def test_create_modify_and_delete_of_streams_and_consumers_are_announced(
    server: LocalCluster,
) -> None:
    async def work() -> None:
        client = await connect(*server.nodes)
        streams = await Listener.on(client, "$JS.EVENT.ADVISORY.STREAM.*.ACTED")
        consumers = await Listener.on(client, "$JS.EVENT.ADVISORY.CONSUMER.*.ACTED.C")
        await fresh(client, "ACTED")
        await api(client, "STREAM.CREATE.ACTED", {"name": "ACTED", "subjects": ["ACTED.>"]})
        await api(
            client, "STREAM.UPDATE.ACTED", {"name": "ACTED", "subjects": ["ACTED.>"], "max_msgs": 5}
        )
        await consumer(client, "ACTED")
        await consumer(client, "ACTED", description="changed")
        await api(client, "STREAM.DELETE.ACTED")
        actions = [(await streams.next())["action"] for _ in range(3)]
        assert actions == ["create", "modify", "delete"], "a repeated create changes nothing"
        actions = [(await consumers.next())["action"] for _ in range(2)]
        assert actions == ["create", "delete"]
        assert not streams.subscription.pending_msgs
        assert not consumers.subscription.pending_msgs
        await client.close()

    run(work)


def test_every_api_request_is_audited_except_reads_of_messages(server: LocalCluster) -> None:
    async def work() -> None:
        client = await connect(*server.nodes)
        await fresh(client, "AUDIT")
        await client.jetstream().publish("AUDIT.x", b"one")
        audit = await Listener.on(client, "$JS.EVENT.ADVISORY.API")
        before = (await api(client, "INFO"))["api"]
        assert (await audit.next())["subject"] == "$JS.API.INFO"
        await api(client, "STREAM.MSG.GET.AUDIT", {"seq": 1})
        await api(client, "STREAM.MSG.GET.AUDIT", {"seq": 99})
        event = await audit.next()
        assert event["request"] == '{"seq": 99}'
        assert json.loads(event["response"])["error"]["err_code"] == 10037
        assert event["server"] == "adv-1"
        assert event["client"]["acc"] == "$G"
        assert event["client"]["lang"] == "python3"
        after = (await api(client, "INFO"))["api"]
        assert after["total"] == before["total"] + 2, "the first INFO and the failed read"
        assert after["errors"] == before["errors"] + 1
        await client.close()

    run(work)


def test_naks_terminations_and_max_deliveries_are_announced(server: LocalCluster) -> None:
    async def work() -> None:
        client = await connect(*server.nodes)
        await fresh(client, "FATES")
        stream = client.jetstream()
        for i in range(3):
            await stream.publish("FATES.x", b"%d" % i)
        await consumer(client, "FATES", max_deliver=2, ack_wait=200_000_000)
        naked = await Listener.on(client, "$JS.EVENT.ADVISORY.CONSUMER.MSG_NAKED.FATES.C")
        ended = await Listener.on(client, "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.FATES.C")
        spent = await Listener.on(client, "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.FATES.C")
        pull = await stream.pull_subscribe_bind("C", stream="FATES")
        first, second, _third = await pull.fetch(3)
        await first.ack()
        await client.publish(second.reply, b"+TERM not wanted")
        event = await ended.next()
        assert (event["stream_seq"], event["consumer_seq"]) == (2, 2)
        assert (event["deliveries"], event["reason"]) == (1, "not wanted")
        (again,) = await pull.fetch(1, timeout=10)
        await again.nak()
        event = await naked.next()
        assert (event["stream_seq"], event["consumer_seq"], event["deliveries"]) == (3, 4, 2)
        event = await spent.next()
        assert (event["stream"], event["stream_seq"], event["deliveries"]) == ("FATES", 3, 2)
        await client.close()

    run(work)


@pytest.mark.parametrize(("freq", "wanted"), [("100%", 20), ("25", 5), ("0", 0)])
def test_acks_are_sampled_at_the_configured_rate(
    server: LocalCluster, freq: str, wanted: int
) -> None:
    async def work() -> None:
        client = await connect(*server.nodes)
        await fresh(client, "SAMPLED")
        stream = client.jetstream()
        for _ in range(21):
            await stream.publish("SAMPLED.x", b"m")
        await consumer(client, "SAMPLED", sample_freq=freq)
        metric = await Listener.on(client, "$JS.EVENT.METRIC.CONSUMER.ACK.SAMPLED.C")
        pull = await stream.pull_subscribe_bind("C", stream="SAMPLED")
        messages = await pull.fetch(21)
        await messages[20].term()  # no ack, no sample
        for message in messages[:20]:
            await message.ack_sync()
        seen = [await metric.next() for _ in range(wanted)]
        assert all(event["ack_time"] > 0 and event["deliveries"] == 1 for event in seen)
        assert all(event["stream_seq"] == event["consumer_seq"] for event in seen)
        assert not metric.subscription.pending_msgs
        await client.close()

    run(work)


def test_the_start_and_end_of_a_pause_are_announced(server: LocalCluster) -> None:
    async def work() -> None:
        client = await connect(*server.nodes)
        await fresh(client, "PAUSED")
        pauses = await Listener.on(client, "$JS.EVENT.ADVISORY.CONSUMER.PAUSE.PAUSED.C")
        await consumer(client, "PAUSED", pause_until="2099-01-01T00:00:00Z")
        event = await pauses.next()
        assert (event["paused"], event["pause_until"]) == (True, "2099-01-01T00:00:00Z")
        await api(client, "CONSUMER.PAUSE.PAUSED.C", {})
        assert (await pauses.next())["paused"] is False
        until = (datetime.now(UTC) + timedelta(seconds=0.4)).isoformat()
        await api(client, "CONSUMER.PAUSE.PAUSED.C", {"pause_until": until})
        assert (await pauses.next())["paused"] is True
        event = await pauses.next()
        assert event["paused"] is False, "the pause is over"
        assert event["timestamp"] >= event["pause_until"]
        await client.close()

    run(work)


def test_a_new_leader_is_announced_on_every_node(tmp_path: Path) -> None:
    async def work(cluster: LocalCluster) -> None:
        clients = [await connect(node) for node in cluster.nodes]
        await (
            clients[0]
            .jetstream()
            .add_stream(StreamConfig(name="LED", subjects=["led.>"], num_replicas=3))
        )
        await consumer(clients[0], "LED")
        streams = [
            await Listener.on(client, "$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED.LED")
            for client in clients
        ]
        consumers = await Listener.on(
            clients[1], "$JS.EVENT.ADVISORY.CONSUMER.LEADER_ELECTED.LED.C"
        )
        old = await leader_of(clients[0], cluster, "LED")

        async def stepped() -> bool:
            answer = await api(clients[0], "STREAM.LEADER.STEPDOWN.LED")
            await asyncio.sleep(0.2)
            return bool(answer.get("success")) and any(
                listener.subscription.pending_msgs for listener in streams
            )

        await eventually(stepped, "a new leader")
        for listener in streams:
            event = await listener.next()
            assert event["account"] == "$G"
            assert event["leader"] != old.name or listener is not streams[0]
            assert {peer["name"] for peer in event["replicas"]} | {event["leader"]} == {
                node.name for node in cluster.nodes
            }
        assert (await consumers.next())["consumer"] == "C"
        for client in clients:
            await client.close()

    with LocalCluster(tmp_path, name="led") as cluster:
        run(lambda: work(cluster))
