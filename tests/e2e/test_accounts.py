"""Accounts across nodes: isolation, JetStream per account, imports, and forgeries without effect.

Every test runs against our three nodes and against nats-server, with the same configuration."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import nats
import nats.errors
import nats.js.errors
import pytest
from nats.js.api import ConsumerConfig, StreamConfig, StreamSource

from broker.local import LocalCluster
from tests.support.clients import open_client
from tests.support.clusters import eventually, nats_server, run

CONFIG = """
accounts {
  A {
    users: [{ user: a, password: a }]
    jetstream { max_streams: 2, max_file: 64MB, max_mem: 64MB }
    exports: [{ stream: "s.>" }, { service: "q.>" }, { service: "$JS.API.>", accounts: [C] }]
  }
  B {
    users: [{ user: b, password: b }]
    jetstream: enabled
    imports: [
      { stream: { account: A, subject: "s.>" }, prefix: p }
      { service: { account: A, subject: "q.>" }, to: "l.>" }
    ]
  }
  C {
    users: [{ user: c, password: c }]
    imports: [{ service: { account: A, subject: "$JS.API.>" }, to: "A.API.>" }]
  }
  S { users: [{ user: s, password: s }] }
}
system_account: S
"""


@pytest.fixture(scope="module", params=["three nodes", "nats-server"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    found = LocalCluster(tmp_path_factory.mktemp("accounts"), name="acc", more=CONFIG)
    if request.param == "nats-server":
        found.size, found.command = 1, nats_server()
    with found as running:
        yield running


async def client(cluster: LocalCluster, user: str, node: int = 0) -> Any:
    """A client of an account, connected to one of the nodes."""
    url = cluster.nodes[node % cluster.size].url
    return await open_client(url, user=user, password=user)


async def request(found: Any, subject: str, body: bytes = b"") -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((await found.request(subject, body, timeout=10)).data)
    return answer


def test_streams_of_two_accounts_are_separate(cluster: LocalCluster) -> None:
    async def work() -> None:
        one, other = await client(cluster, "a"), await client(cluster, "b", 1)
        for owner, word in ((one, b"of a"), (other, b"of b")):
            stream = owner.jetstream()
            await stream.add_stream(StreamConfig(name="SAME", subjects=["same.>"]))
            ack = await stream.publish("same.x", word)
            assert ack.seq == 1
        assert (await one.jetstream().get_msg("SAME", 1)).data == b"of a"
        assert (await other.jetstream().get_msg("SAME", 1)).data == b"of b"
        assert await other.jetstream().delete_stream("SAME")
        assert (await one.jetstream().stream_info("SAME")).state.messages == 1
        await one.jetstream().delete_stream("SAME")
        await one.close()
        await other.close()

    run(work)


def test_limits_apply_per_account(cluster: LocalCluster) -> None:
    async def work() -> None:
        one, other = await client(cluster, "a", 2), await client(cluster, "b")
        for name in ("L1", "L2"):
            await one.jetstream().add_stream(StreamConfig(name=name))
        with pytest.raises(nats.js.errors.APIError) as refusal:
            await one.jetstream().add_stream(StreamConfig(name="L3"))
        assert refusal.value.err_code == 10027
        for name in ("L1", "L2", "L3"):
            await other.jetstream().add_stream(StreamConfig(name=name))
            await other.jetstream().delete_stream(name)
        info = await one.jetstream().account_info()
        assert (info.limits.max_streams, info.limits.max_storage) == (2, 64 << 20)
        for name in ("L1", "L2"):
            await one.jetstream().delete_stream(name)
        await one.close()
        await other.close()

    run(work)


@pytest.mark.parametrize("subject", ["INFO", "STREAM.NAMES", "STREAM.INFO.X"])
@pytest.mark.parametrize("user", ["c", "s"])
def test_an_account_without_jetstream_gets_an_error(
    cluster: LocalCluster, user: str, subject: str
) -> None:
    async def work() -> None:
        found = await client(cluster, user)
        assert (await request(found, f"$JS.API.{subject}"))["error"]["err_code"] == 10039
        if user == "c":
            with pytest.raises(nats.errors.NoRespondersError):
                await found.request("$JS.API.CONSUMER.MSG.NEXT.X.Y", b"", timeout=10)
        await found.close()

    run(work)


def test_imports_cross_nodes(cluster: LocalCluster) -> None:
    async def work() -> None:
        exporter, importer = await client(cluster, "a", 0), await client(cluster, "b", 1)
        seen = await importer.subscribe("p.s.>")

        async def answer(message: Any) -> None:
            await message.respond(b"yes " + message.data)

        await exporter.subscribe("q.*", cb=answer)
        await asyncio.gather(exporter.flush(), importer.flush())

        async def served() -> bool:
            return (await importer.request("l.x", b"1", timeout=2)).data == b"yes 1"

        await eventually(served, "interest of the exporter at the other node")

        async def shown() -> bool:
            await exporter.publish("s.x", b"hello")
            message = await seen.next_msg(timeout=1)
            assert (message.subject, message.data) == ("p.s.x", b"hello")
            return True

        await eventually(shown, "interest of the importer at the other node")
        await exporter.close()
        await importer.close()

    run(work)


def test_a_stream_stores_what_its_account_imports(cluster: LocalCluster) -> None:
    async def work() -> None:
        exporter, importer = await client(cluster, "a", 2), await client(cluster, "b", 0)
        stream = importer.jetstream()
        await stream.add_stream(StreamConfig(name="GOT", subjects=["p.s.>"]))
        await exporter.publish("s.stored", b"kept")
        await exporter.flush()

        async def stored() -> bool:
            return bool((await stream.stream_info("GOT")).state.messages)

        await eventually(stored, "the imported message in the stream")
        message = await stream.get_msg("GOT", 1)
        assert (message.subject, message.data) == ("p.s.stored", b"kept")
        await stream.delete_stream("GOT")
        await exporter.close()
        await importer.close()

    run(work)


def test_the_api_of_another_account_can_be_imported(cluster: LocalCluster) -> None:
    async def work() -> None:
        owner, guest = await client(cluster, "a"), await client(cluster, "c", 1)
        await owner.jetstream().add_stream(StreamConfig(name="LENT", subjects=["lent"]))
        await owner.jetstream().publish("lent", b"1")
        info = await request(guest, "A.API.STREAM.INFO.LENT")
        assert info["state"]["messages"] == 1
        stranger = await client(cluster, "b")
        with pytest.raises(nats.errors.NoRespondersError):
            await stranger.request("A.API.STREAM.INFO.LENT", b"", timeout=10)
        await owner.jetstream().delete_stream("LENT")
        for one in (owner, guest, stranger):
            await one.close()

    run(work)


def test_acks_and_replies_forged_by_another_account_have_no_effect(cluster: LocalCluster) -> None:
    async def work() -> None:
        owner, forger = await client(cluster, "a"), await client(cluster, "b", 1)
        mine = owner.jetstream()
        await mine.add_stream(StreamConfig(name="ACKS", subjects=["acks"]))
        await mine.publish("acks", b"1")
        await mine.add_consumer("ACKS", ConsumerConfig(durable_name="C", ack_policy="explicit"))
        worker = await mine.pull_subscribe_bind("C", "ACKS")
        [message] = await worker.fetch(1, timeout=10)
        for body in (b"+ACK", b"+TERM", b"-NAK", b""):
            await forger.publish(message.reply, body)
            with pytest.raises((nats.errors.NoRespondersError, nats.errors.TimeoutError)):
                await forger.request(message.reply, body, timeout=0.5)
        pulling = await forger.subscribe("stolen")
        await forger.publish("$JS.API.CONSUMER.MSG.NEXT.ACKS.C", b"", reply="stolen")
        await forger.flush()
        asked = asyncio.create_task(mine.stream_info("ACKS"))
        await forger.publish("_INBOX.x", b'{"error":{"code":1}}')
        assert (await asked).state.messages == 1
        info = await mine.consumer_info("ACKS", "C")
        assert (info.num_ack_pending, info.ack_floor.stream_seq) == (1, 0)
        await message.ack_sync(timeout=10)
        assert (await mine.consumer_info("ACKS", "C")).num_ack_pending == 0
        refused = [await pulling.next_msg(timeout=10)] if pulling.pending_msgs else []
        assert all(not m.data and (m.headers or {}).get("Status") for m in refused)
        await mine.delete_stream("ACKS")
        await owner.close()
        await forger.close()

    run(work)
    for node in cluster.nodes:
        assert "Traceback" not in node.log_path.read_text()


def test_mirrors_read_the_streams_of_their_own_account(cluster: LocalCluster) -> None:
    """Both accounts have a stream of that name; the first user in the file belongs to A."""

    async def work() -> None:
        a, b = await client(cluster, "a"), await client(cluster, "b")
        for user, body in ((a, b"of A"), (b, b"of B")):
            direct = StreamConfig(name="SAME", subjects=["same"], allow_direct=True)
            await user.jetstream().add_stream(direct)
            await user.jetstream().publish("same", body)
        await b.jetstream().add_stream(StreamConfig(name="COPY", mirror=StreamSource(name="SAME")))

        async def copied() -> Any:
            return await b.jetstream().get_msg("COPY", 1)

        found = await eventually(copied, "the mirror has its message")
        assert found.data == b"of B"
        info = json.loads((await b.request("$JS.API.STREAM.INFO.SAME", timeout=10)).data)
        alternates = [one["name"] for one in info.get("alternates", ())]
        assert alternates == (["SAME", "COPY"] if cluster.size > 1 else [])
        await b.jetstream().delete_stream("SAME")

        async def answered_by_the_mirror() -> Any:
            got = await b.request("$JS.API.DIRECT.GET.SAME.same", timeout=10)
            return got if got.headers["Nats-Stream"] == "COPY" else None

        got = await eventually(answered_by_the_mirror, "the mirror answers for its origin")
        assert got.data == b"of B"
        for user, stream in ((b, "COPY"), (a, "SAME")):
            await user.jetstream().delete_stream(stream)
        await a.close()
        await b.close()

    run(work)
