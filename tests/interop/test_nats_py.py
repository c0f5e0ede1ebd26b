"""The official Python client, unchanged, against one node and three."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import nats
import nats.errors
import nats.js.errors
import pytest
from nats.errors import NoRespondersError
from nats.js import api

from broker.local import LocalCluster
from tests.support.clients import closing_clients, open_client

WITHIN_S = 30.0
Test = Callable[[Any], Awaitable[None]]
Runner = Callable[[Test], None]


@asynccontextmanager
async def connected(cluster: LocalCluster) -> AsyncIterator[Any]:
    """A client of the last node, which does not lead every stream."""
    client = await open_client(cluster.nodes[-1].url)
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture(params=["single", "three"])
def run(request: pytest.FixtureRequest) -> Runner:
    """Runs a test with a client and deletes the streams that the test left."""
    cluster: LocalCluster = request.getfixturevalue(request.param)

    def run_one(test: Test) -> None:
        async def bounded() -> None:
            async with closing_clients(), asyncio.timeout(WITHIN_S), connected(cluster) as client:
                try:
                    await test(client)
                finally:
                    context = client.jetstream()
                    for info in await context.streams_info():
                        await context.delete_stream(info.config.name)

        asyncio.run(bounded())

    return run_one


async def publish(client: Any, subject: str, count: int) -> None:
    context = client.jetstream()
    for number in range(1, count + 1):
        await context.publish(subject, b"%d" % number)


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    while not await check():
        await asyncio.sleep(0.01)


# -- core ------------------------------------------------------------------------------------------


def test_request_and_reply(run: Runner) -> None:
    async def test(client: Any) -> None:
        async def answer(message: Any) -> None:
            await message.respond(b"re: " + message.data)

        await client.subscribe("ask", queue="q", cb=answer)
        replies = [await client.request("ask", b"%d" % n, timeout=WITHIN_S) for n in range(3)]
        assert [reply.data for reply in replies] == [b"re: 0", b"re: 1", b"re: 2"]
        with pytest.raises(NoRespondersError):
            await client.request("nobody", b"")

    run(test)


# -- streams ---------------------------------------------------------------------------------------


def test_streams_are_created_found_updated_and_deleted(run: Runner) -> None:
    async def test(client: Any) -> None:
        context = client.jetstream()
        created = await context.add_stream(name="S", subjects=["s.*"], max_msgs=100)
        assert created.config.max_msgs == 100
        again = await context.add_stream(name="S", subjects=["s.*"], max_msgs=100)
        assert again.created == created.created
        with pytest.raises(nats.js.errors.BadRequestError) as refused:
            await context.add_stream(name="S", subjects=["s.*"], max_msgs=5)
        assert refused.value.err_code == 10058
        assert await context.find_stream_name_by_subject("s.a") == "S"
        await publish(client, "s.a", 10)
        updated = await context.update_stream(name="S", subjects=["s.>"], max_msgs=4)
        assert (updated.config.subjects, updated.state.messages) == (["s.>"], 4)
        assert await context.purge_stream("S", keep=1)
        info = await context.stream_info("S", subjects_filter=">")
        assert (info.state.first_seq, info.state.last_seq) == (10, 10)
        assert info.state.subjects == {"s.a": 1}
        await context.delete_stream("S")
        with pytest.raises(nats.js.errors.NotFoundError):
            await context.stream_info("S")

    run(test)


def test_publishes_are_acked_deduplicated_and_checked(run: Runner) -> None:
    async def test(client: Any) -> None:
        context = client.jetstream()
        await context.add_stream(name="S", subjects=["s.*"])
        first = await context.publish("s.a", b"x", headers={"Nats-Msg-Id": "1"})
        repeated = await context.publish("s.a", b"x", headers={"Nats-Msg-Id": "1"})
        assert (first.seq, repeated.seq, repeated.duplicate) == (1, 1, True)
        with pytest.raises(nats.js.errors.BadRequestError) as refused:
            await context.publish("s.a", b"", headers={"Nats-Expected-Last-Sequence": "7"})
        assert refused.value.err_code == 10071
        with pytest.raises(nats.js.errors.NoStreamResponseError):
            await context.publish("nobody.stores.this", b"")
        futures = [await context.publish_async("s.b", b"%d" % n) for n in range(500)]
        await context.publish_async_completed()
        assert [future.result().seq for future in futures] == list(range(2, 502))
        message = await context.get_msg("S", 1)
        assert (message.data, message.headers["Nats-Msg-Id"]) == (b"x", "1")
        last = await context.get_last_msg("S", "s.b")
        assert last.seq == 501
        assert await context.delete_msg("S", 1)
        with pytest.raises(nats.js.errors.NotFoundError):
            await context.get_msg("S", 1)

    run(test)


# -- consumers -------------------------------------------------------------------------------------


def test_pull_consumers(run: Runner) -> None:
    async def test(client: Any) -> None:
        context = client.jetstream()
        await context.add_stream(name="S", subjects=["s"])
        await publish(client, "s", 10)
        subscription = await context.pull_subscribe("s", durable="D")
        messages = await subscription.fetch(4)
        assert [message.data for message in messages] == [b"1", b"2", b"3", b"4"]
        for message in messages[:3]:
            await message.ack_sync()
        await messages[3].nak()
        (redelivered,) = await subscription.fetch(1)
        assert (redelivered.data, redelivered.metadata.num_delivered) == (b"4", 2)
        await redelivered.term()
        rest = await subscription.fetch(6, timeout=WITHIN_S)  # the fetch below finds no more
        assert [message.metadata.sequence.stream for message in rest] == [5, 6, 7, 8, 9, 10]
        for message in rest:
            await message.ack_sync()
        with pytest.raises(TimeoutError):
            await subscription.fetch(1, timeout=0.2)
        info = await context.consumer_info("S", "D")
        assert (info.num_pending, info.num_ack_pending) == (0, 0)
        assert info.ack_floor.stream_seq == 10

    run(test)


def test_push_consumers_share_a_queue_group(run: Runner) -> None:
    async def test(client: Any) -> None:
        context = client.jetstream()
        await context.add_stream(name="S", subjects=["s"])
        got: list[list[bytes]] = [[], []]

        def keep(of: int) -> Callable[[Any], Awaitable[None]]:
            async def take(message: Any) -> None:
                got[of].append(message.data)
                await message.ack()

            return take

        for number in range(2):
            await context.subscribe("s", queue="workers", cb=keep(number), manual_ack=True)
        await publish(client, "s", 50)

        async def all_acked() -> bool:
            info = await context.consumer_info("S", "workers")
            return bool(info.ack_floor.stream_seq == 50)

        await until(all_acked)
        assert sorted(got[0] + got[1], key=int) == [b"%d" % n for n in range(1, 51)]
        assert got[0]
        assert got[1]

    run(test)


def test_ordered_consumer_reads_a_whole_stream_with_flow_control(run: Runner) -> None:
    async def test(client: Any) -> None:
        context = client.jetstream()
        await context.add_stream(name="S", subjects=["s"])
        chunk = bytes(64 * 1024)
        for _ in range(100):
            await context.publish_async("s", chunk)
        await context.publish_async_completed()
        subscription = await context.subscribe("s", ordered_consumer=True)
        seqs = []
        for _ in range(100):
            message = await subscription.next_msg(timeout=WITHIN_S)
            assert message.data == chunk
            seqs.append(message.metadata.sequence.stream)
        assert seqs == list(range(1, 101))

    run(test)


# -- key-value -------------------------------------------------------------------------------------


def test_key_value_history_compare_and_set_delete_and_purge(run: Runner) -> None:
    async def test(client: Any) -> None:
        context = client.jetstream()
        bucket = await context.create_key_value(bucket="B", history=5)
        assert [await bucket.put("k", b"%d" % n) for n in range(1, 8)] == [1, 2, 3, 4, 5, 6, 7]
        assert [entry.value for entry in await bucket.history("k")] == [
            b"3",
            b"4",
            b"5",
            b"6",
            b"7",
        ]
        assert (await bucket.get("k", revision=4)).value == b"4"
        assert await bucket.update("k", b"8", last=7) == 8
        with pytest.raises(nats.js.errors.KeyWrongLastSequenceError):
            await bucket.update("k", b"9", last=7)
        with pytest.raises(nats.js.errors.KeyWrongLastSequenceError):
            await bucket.create("k", b"new")
        await bucket.delete("k")
        with pytest.raises(nats.js.errors.KeyNotFoundError):
            await bucket.get("k")
        assert await bucket.create("k", b"anew") == 10
        await bucket.put("other", b"x")
        await bucket.purge("k")
        assert [entry.operation for entry in await bucket.history("k")] == ["PURGE"]
        assert await bucket.keys() == ["other"]
        status = await bucket.status()
        assert (status.bucket, status.history, status.values) == ("B", 5, 2)

    run(test)


def test_key_value_watch(run: Runner) -> None:
    async def test(client: Any) -> None:
        context = client.jetstream()
        bucket = await context.create_key_value(bucket="B")
        await bucket.put("a.1", b"1")
        await bucket.put("b.1", b"2")
        watcher = await bucket.watch("a.*")
        assert (await watcher.updates(timeout=WITHIN_S)).value == b"1"
        assert await watcher.updates(timeout=WITHIN_S) is None  # end of the initial values
        await bucket.put("a.2", b"3")
        await bucket.put("b.2", b"4")
        await bucket.delete("a.1")
        entry = await watcher.updates(timeout=WITHIN_S)
        assert (entry.key, entry.value) == ("a.2", b"3")
        entry = await watcher.updates(timeout=WITHIN_S)
        assert (entry.key, entry.operation) == ("a.1", "DEL")
        await watcher.stop()

    run(test)


def test_key_value_entries_expire(run: Runner) -> None:
    async def test(client: Any) -> None:
        context = client.jetstream()
        bucket = await context.create_key_value(bucket="B", ttl=1.0)
        await bucket.put("k", b"1")
        assert (await bucket.get("k")).value == b"1"

        async def gone() -> bool:
            try:
                await bucket.get("k")
            except nats.js.errors.KeyNotFoundError:
                return True
            return False

        await until(gone)
        await context.add_stream(name="TTL", subjects=["ttl"], allow_msg_ttl=True)
        await context.publish("ttl", b"short", msg_ttl=1.0)
        await context.publish("ttl", b"kept")

        async def one_left() -> bool:
            return bool((await context.stream_info("TTL")).state.messages == 1)

        await until(one_left)
        assert (await context.get_msg("TTL", 2)).data == b"kept"

    run(test)


# -- objects ---------------------------------------------------------------------------------------


def test_object_store_with_five_megabytes(run: Runner) -> None:
    async def test(client: Any) -> None:
        context = client.jetstream()
        store = await context.create_object_store(bucket="OB")
        content = os.urandom(5 << 20)
        written = await store.put("big", content)
        assert (written.size, written.chunks) == (len(content), 40)
        assert (await store.get("big")).data == content
        await store.put("big", b"small now")
        assert (await store.get("big")).data == b"small now"
        assert [entry.name for entry in await store.list()] == ["big"]
        await store.delete("big")
        with pytest.raises(nats.js.errors.ObjectNotFoundError):
            await store.get("big")
        status = await store.status()
        assert status.size < 1024

    run(test)


def test_streams_of_three_replicas(three: LocalCluster) -> None:
    async def test() -> None:
        async with closing_clients(), asyncio.timeout(WITHIN_S), connected(three) as client:
            context = client.jetstream()
            config = api.StreamConfig(name="R3", subjects=["r3"], num_replicas=3)
            info = await context.add_stream(config)
            assert len(info.cluster.replicas) == 2
            await publish(client, "r3", 10)
            for node in three.nodes:
                async with asyncio.timeout(WITHIN_S):
                    other = await open_client(node.url)
                message = await other.jetstream().get_msg("R3", 10)
                assert message.data == b"10"
                await other.close()
            await context.delete_stream("R3")

    asyncio.run(test())
