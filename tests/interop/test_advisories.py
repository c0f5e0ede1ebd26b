"""Advisories and metrics of a running server: sent, complete, and as their schemas say."""

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
    """Takes events under one subject, checks each against its schema."""

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


def test_streams_and_consumers_tell_when_they_come_change_and_go(server: LocalCluster) -> None:
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
        told = [(await streams.next())["action"] for _ in range(3)]
        assert told == ["create", "modify", "delete"], "a repeated create changes nothing"
        told = [(await consumers.next())["action"] for _ in range(2)]
        assert told == ["create", "delete"]
        assert not streams.subscription.pending_msgs
        assert not consumers.subscription.pending_msgs
        await client.close()

    run(work)


def test_every_use_of_the_api_is_audited_but_reads_of_messages(server: LocalCluster) -> None:
    async def work() -> None:
        client = await connect(*server.nodes)
        await fresh(client, "AUDIT")
        await client.jetstream().publish("AUDIT.x", b"one")
        audit = await Listener.on(client, "$JS.EVENT.ADVISORY.API")
        before = (await api(client, "INFO"))["api"]
        assert (await audit.next())["subject"] == "$JS.API.INFO"
        await api(client, "STREAM.MSG.GET.AUDIT", {"seq": 1})
        await api(client, "STREAM.MSG.GET.AUDIT", {"seq": 99})
        told = await audit.next()
        assert told["request"] == '{"seq": 99}'
        assert json.loads(told["response"])["error"]["err_code"] == 10037
        assert told["server"] == "adv-1"
        assert told["client"]["acc"] == "$G"
        assert told["client"]["lang"] == "python3"
        after = (await api(client, "INFO"))["api"]
        assert after["total"] == before["total"] + 2, "the first INFO and the refused read"
        assert after["errors"] == before["errors"] + 1
        await client.close()

    run(work)


def test_naks_terminations_and_spent_messages_are_told(server: LocalCluster) -> None:
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
        told = await ended.next()
        assert (told["stream_seq"], told["consumer_seq"]) == (2, 2)
        assert (told["deliveries"], told["reason"]) == (1, "not wanted")
        (again,) = await pull.fetch(1, timeout=10)
        await again.nak()
        told = await naked.next()
        assert (told["stream_seq"], told["consumer_seq"], told["deliveries"]) == (3, 4, 2)
        told = await spent.next()
        assert (told["stream"], told["stream_seq"], told["deliveries"]) == ("FATES", 3, 2)
        await client.close()

    run(work)


@pytest.mark.parametrize(("freq", "wanted"), [("100%", 20), ("25", 5), ("0", 0)])
def test_acks_are_sampled_as_often_as_asked(server: LocalCluster, freq: str, wanted: int) -> None:
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
        assert all(told["ack_time"] > 0 and told["deliveries"] == 1 for told in seen)
        assert all(told["stream_seq"] == told["consumer_seq"] for told in seen)
        assert not metric.subscription.pending_msgs
        await client.close()

    run(work)


def test_pauses_are_told_when_they_begin_and_end(server: LocalCluster) -> None:
    async def work() -> None:
        client = await connect(*server.nodes)
        await fresh(client, "PAUSED")
        pauses = await Listener.on(client, "$JS.EVENT.ADVISORY.CONSUMER.PAUSE.PAUSED.C")
        await consumer(client, "PAUSED", pause_until="2099-01-01T00:00:00Z")
        told = await pauses.next()
        assert (told["paused"], told["pause_until"]) == (True, "2099-01-01T00:00:00Z")
        await api(client, "CONSUMER.PAUSE.PAUSED.C", {})
        assert (await pauses.next())["paused"] is False
        until = (datetime.now(UTC) + timedelta(seconds=0.4)).isoformat()
        await api(client, "CONSUMER.PAUSE.PAUSED.C", {"pause_until": until})
        assert (await pauses.next())["paused"] is True
        told = await pauses.next()
        assert told["paused"] is False, "the time has come"
        assert told["timestamp"] >= told["pause_until"]
        await client.close()

    run(work)


def test_a_new_leader_is_told_on_every_node(tmp_path: Path) -> None:
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
            told = await listener.next()
            assert told["account"] == "$G"
            assert told["leader"] != old.name or listener is not streams[0]
            assert {peer["name"] for peer in told["replicas"]} | {told["leader"]} == {
                node.name for node in cluster.nodes
            }
        assert (await consumers.next())["consumer"] == "C"
        for client in clients:
            await client.close()

    with LocalCluster(tmp_path, name="led") as cluster:
        run(lambda: work(cluster))
