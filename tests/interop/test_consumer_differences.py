"""Requests about consumers that nats-server refuses: sent to both servers, answered alike."""

from __future__ import annotations

import asyncio
from typing import Any

from broker.local import LocalCluster
from tests.support.clusters import WITHIN_S, connect, run
from tests.support.interop import api


async def lowered_limits(client: Any) -> list[Any]:
    stream = {"name": "CLIM", "subjects": ["clim"]}
    await api(client, "STREAM.CREATE.CLIM", stream)
    config = {"durable_name": "d", "ack_policy": "explicit", "max_ack_pending": 50}
    await api(client, "CONSUMER.CREATE.CLIM.d", {"stream_name": "CLIM", "config": config})
    answers = []
    for limits in ({"max_ack_pending": 20}, {"max_ack_pending": 60}, {"inactive_threshold": 10**9}):
        update = {**stream, "consumer_limits": limits}
        answer = await api(client, "STREAM.UPDATE.CLIM", update)
        answers.append(answer.get("error") or answer["config"]["consumer_limits"])
    return answers


async def rivals(client: Any) -> list[int]:
    """Six clients create one durable push consumer at once, each with its own deliver subject."""
    await api(client, "STREAM.CREATE.RIVALS", {"name": "RIVALS", "subjects": ["rivals"]})

    async def create(number: int) -> int:
        subject = f"deliver.{number}"
        await client.subscribe(subject)
        config = {"durable_name": "d", "ack_policy": "explicit", "deliver_subject": subject}
        body = {"stream_name": "RIVALS", "config": config}
        answer = await api(client, "CONSUMER.DURABLE.CREATE.RIVALS.d", body)
        return int(answer["error"]["err_code"] if "error" in answer else 0)

    return sorted(await asyncio.gather(*(create(number) for number in range(6))))


def test_consumers_that_exceed_new_limits_refuse_the_update(
    single: LocalCluster, three: LocalCluster, reference: LocalCluster
) -> None:
    async def test() -> None:
        found = []
        for cluster in (reference, single, three):
            client = await connect(*cluster.nodes)
            found.append(await lowered_limits(client))
            await client.close()
        assert found[0][0]["err_code"] == 10069
        assert found[1] == found[0]
        assert found[2] == found[0]

    run(test)


def test_one_of_six_rivals_gets_the_push_consumer(
    single: LocalCluster, three: LocalCluster, reference: LocalCluster
) -> None:
    async def test() -> None:
        for cluster in (reference, single, three):
            client = await connect(*cluster.nodes)
            assert await rivals(client) == [0, 10013, 10013, 10013, 10013, 10013], cluster.name
            await client.close()

    run(test)


def test_a_backlog_is_spread_over_a_queue_group(
    single: LocalCluster, three: LocalCluster, reference: LocalCluster
) -> None:
    async def test() -> None:
        for cluster in (reference, single, three):
            clients = [await connect(node) for node in (cluster.nodes * 2)[:2]]
            counts = [0, 0]
            done = asyncio.Event()
            await api(clients[0], "STREAM.CREATE.SPREAD", {"name": "SPREAD", "subjects": ["sp"]})
            context = clients[0].jetstream(timeout=WITHIN_S)
            for _ in range(10):
                await asyncio.gather(*(context.publish("sp", b"x") for _ in range(40)))

            def on_message(number: int) -> Any:
                async def count(_message: Any) -> None:
                    counts[number] += 1  # noqa: B023
                    if sum(counts) >= 400:  # noqa: B023
                        done.set()  # noqa: B023

                return count

            for number, client in enumerate(clients):
                await client.subscribe("spread.to", "group", cb=on_message(number))
                await client.flush()
            config = {
                "durable_name": "d",
                "deliver_subject": "spread.to",
                "deliver_group": "group",
                "ack_policy": "none",
            }
            body = {"stream_name": "SPREAD", "config": config}
            await api(clients[0], "CONSUMER.DURABLE.CREATE.SPREAD.d", body)
            await asyncio.wait_for(done.wait(), WITHIN_S)
            assert sum(counts) == 400
            assert min(counts) > 100, (cluster.name, counts)
            for client in clients:
                await client.close()

    run(test)
