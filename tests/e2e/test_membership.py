"""Nodes come and go: a new node joins by itself, a wiped one is rebuilt, a removed one is gone."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from click.testing import CliRunner
from nats.js.api import StorageType, StreamConfig
from nats.js.errors import NoStreamResponseError

from broker.cli.main import cli
from broker.local import LocalCluster, LocalNode
from tests.support.clients import open_client
from tests.support.clusters import connect, eventually, run
from tests.support.publishers import Publisher, stored


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, name="nodes") as running:
        yield running


def meta_members(node: LocalNode) -> set[str]:
    """The members of the cluster as a node shows them."""
    meta: Any = node.http("/jsz")["meta_cluster"]
    return {meta["leader"], *(peer["name"] for peer in meta["replicas"])}


def voters(node: LocalNode) -> set[str]:
    """The voters of the meta group as this node's Raft log has them."""
    shown: Any = node.http("/raftz")
    (groups,) = shown.values()
    meta = groups["_meta_"]
    return {peer["name"] for peer in meta["peers"].values()} | {node.name}


async def create(client: Any, name: str, replicas: int = 3, storage: str = "file") -> None:
    kind = StorageType.FILE if storage == "file" else StorageType.MEMORY
    await client.jetstream().add_stream(
        StreamConfig(name=name, subjects=[f"{name}.>"], num_replicas=replicas, storage=kind)
    )


async def current(client: Any, name: str, *, count: int = 3) -> set[str]:
    """Wait until the stream has `count` replicas, all current. The names of their nodes."""

    async def settled() -> set[str] | None:
        answer = await client.request(f"$JS.API.STREAM.INFO.{name}", b"", timeout=3)
        group = json.loads(answer.data).get("cluster", {})
        others = group.get("replicas", [])
        level = len(others) == count - 1 and all(peer["current"] for peer in others)
        if not level or "desired" in group:
            return None
        return {group["leader"], *(peer["name"] for peer in others)}

    return set(await eventually(settled, f"{count} current replicas of {name}"))


def wipe(node: LocalNode) -> None:
    shutil.rmtree(node.directory / "data")


def test_a_new_node_with_one_route_joins_and_gets_replicas(cluster: LocalCluster) -> None:
    async def work() -> None:
        client = await connect(*cluster.nodes)
        await create(client, "BEFORE")
        late = cluster.add()
        late.start()
        late.wait_healthy()
        names = {node.name for node in cluster.nodes}

        async def all_vote() -> bool:
            return all(voters(node) == names for node in cluster.nodes)

        await eventually(all_vote, "four voters on every node")
        for node in cluster.nodes:
            assert meta_members(node) == names
        joined = await connect(late)
        info = await joined.jetstream().stream_info("BEFORE")  # it knows the streams
        assert info.config.name == "BEFORE"
        held = set()
        for number in range(4):
            await create(joined, f"AFTER{number}")
            held |= await current(client, f"AFTER{number}")
        assert late.name in held
        await joined.close()
        await client.close()

    run(work)


def test_a_wiped_node_is_rebuilt_and_the_next_failure_stops_nothing(cluster: LocalCluster) -> None:
    first, second, third = cluster.nodes

    async def work() -> None:
        client = await connect(second, third)
        names = ["FILE0", "FILE1", "FILE2", "MEM"]
        for name in names:
            await create(client, name, storage="memory" if name == "MEM" else "file")
            for number in range(50):
                await client.jetstream().publish(f"{name}.x", b"%d" % number)
        first.kill()
        wipe(first)
        first.start()
        first.wait_healthy()  # that is enough: it votes in every group, the others may stop
        second.kill()
        for name in names:

            async def publishes(name: str = name) -> bool:
                return bool(await client.jetstream().publish(f"{name}.x", b"after", timeout=5))

            await eventually(publishes, f"a publish to {name} with two nodes")
            message = await client.jetstream().get_msg(name, 50)
            assert message.data == b"49"
        await create(client, "NEW", replicas=1)  # the meta group has a quorum as well
        second.start()
        second.wait_healthy()
        for name in names:
            assert await current(client, name) == {node.name for node in cluster.nodes}
        await client.close()

    run(work)


SYSTEM = "accounts { $SYS { users: [{ user: sys, password: secret }] } }"


async def system(node: LocalNode) -> Any:
    return await open_client(node.url, user="sys", password="secret")


async def ask(client: Any, subject: str, **body: object) -> dict[str, Any]:
    answer = await client.request(f"$JS.API.{subject}", json.dumps(body).encode(), timeout=20)
    return dict(json.loads(answer.data))


async def gone(client: Any, name: str) -> None:
    """Wait until the server is no longer a member."""

    async def there() -> bool:
        status = await ask(client, "SERVER.STATUS")
        return name not in [server["name"] for server in status["servers"]]

    await eventually(there, f"{name} is removed")


def test_three_to_five_to_three_nodes_under_load(tmp_path: Path) -> None:
    """The last three nodes share nothing with the first three but one."""

    async def work(cluster: LocalCluster) -> None:
        first, second, third = cluster.nodes
        client = await connect(third)
        await create(client, "R3")
        await create(client, "R1", replicas=1)
        publishers = [Publisher(client, "R3.x"), Publisher(client, "R1.x")]
        for publisher in publishers:
            await publisher.some_more()
        for _ in range(2):
            node = cluster.add()
            node.start()
            node.wait_healthy()
        everyone = {node.name for node in cluster.nodes}

        async def five() -> bool:
            return all(voters(node) == everyone for node in cluster.nodes)

        await eventually(five, "five voters")
        operator = await system(third)
        for node in (first, second):
            assert (await ask(operator, "SERVER.REMOVE", peer=node.name))["success"]
            await gone(operator, node.name)
            for publisher in publishers:
                await publisher.some_more()
        left = everyone - {first.name, second.name}
        assert await current(client, "R3") == left
        assert await current(client, "R1", count=1) <= left

        async def three() -> bool:
            return all(voters(node) == left for node in cluster.nodes if node.name in left)

        await eventually(three, "three voters")
        for publisher, name in zip(publishers, ("R3", "R1"), strict=True):
            await stored(client, name, await publisher.stop())
        await _is_out(first, third)
        refused = await ask(operator, "SERVER.REMOVE", peer="nobody")
        assert refused["error"]["err_code"] == 10044
        await operator.close()
        await client.close()

    with LocalCluster(tmp_path, name="grow", more=SYSTEM) as cluster:
        run(lambda: work(cluster))


async def _is_out(node: LocalNode, member: LocalNode) -> None:
    """A removed node says so, and no other node sends clients to it."""

    async def says_so() -> bool:
        try:
            node.http("/healthz")
        except HTTPError as error:
            return "was removed from the cluster" in error.read().decode()
        return False

    await eventually(says_so, "the removed node knows it")

    async def advertised() -> bool:
        fresh = await connect(member)
        urls = fresh._server_info["connect_urls"]
        await fresh.close()
        return f"127.0.0.1:{node.client_port}" not in urls and len(urls) == 3

    await eventually(advertised, "the other nodes send no client to it")
    there = await connect(node)
    try:
        # Whoever is connected to it is sent to the members.
        urls = there._server_info["connect_urls"]
        assert f"127.0.0.1:{member.client_port}" in urls
        assert f"127.0.0.1:{node.client_port}" not in urls
        assert (await ask(there, "STREAM.INFO.R3"))["error"]["err_code"] == 10008
        with pytest.raises(NoStreamResponseError):  # refused, not swallowed
            await there.jetstream().publish("R3.x", b"lost?", timeout=5)
    finally:
        await there.close()


def test_removals_that_would_cost_the_quorum_are_refused(tmp_path: Path) -> None:
    async def work(cluster: LocalCluster) -> None:
        first, second, third = cluster.nodes
        client, operator = await connect(first), await system(first)
        await create(client, "ONE", replicas=1)
        holder = next(iter(await current(client, "ONE", count=1)))
        away = next(node for node in (second, third) if node.name != holder)
        other = next(node for node in (second, third) if node is not away)
        away.kill()

        async def noticed() -> bool:
            servers = (await ask(operator, "SERVER.STATUS"))["servers"]
            return not next(s["connected"] for s in servers if s["name"] == away.name)

        await eventually(noticed, f"{away.name} is away")
        refused = await ask(operator, "SERVER.REMOVE", peer=other.name)
        assert refused["error"]["description"] == (
            f"without {other.name} 2 nodes are left, 1 of them connected: no quorum"
        )
        assert (await ask(operator, "SERVER.REMOVE", peer=away.name))["success"]
        await gone(operator, away.name)
        refused = await ask(operator, "SERVER.REMOVE", peer=other.name)
        assert "a cluster needs 2 nodes" in refused["error"]["description"]
        away.start()  # with its old data: it was removed and stays out

        async def out() -> bool:
            return "this node was removed from the cluster" in away.log_tail()

        await eventually(out, "the removed node is told")
        away.kill()
        wipe(away)
        away.start()
        away.wait_healthy()
        status = await ask(operator, "SERVER.STATUS")
        assert [s["name"] for s in status["servers"]] == [node.name for node in cluster.nodes]
        await operator.close()
        await client.close()

    with LocalCluster(tmp_path, name="quorum", more=SYSTEM) as cluster:
        run(lambda: work(cluster))


def test_a_stream_whose_only_disk_is_lost_starts_again_empty(cluster: LocalCluster) -> None:
    async def work() -> None:
        client = await connect(*cluster.nodes)
        await create(client, "ONE", replicas=1)
        await client.jetstream().publish("ONE.x", b"gone soon")
        name = next(iter(await current(client, "ONE", count=1)))
        node = next(node for node in cluster.nodes if node.name == name)
        node.kill()
        wipe(node)
        node.start()

        async def publishes() -> bool:
            ack = await client.jetstream().publish("ONE.x", b"new", timeout=3)
            return bool(ack.seq == 1)

        await eventually(publishes, "the stream is there again")
        logs = "".join(node.log_path.read_text() for node in cluster.nodes)
        assert "stream ONE: every node that held it is gone from the cluster" in logs
        await client.close()

    run(work)


def command(node: LocalNode, *words: str, fails: bool = False) -> dict[str, Any]:
    """`jetraft cluster ... --json` as the system user."""
    environment = {"NATS_USER": "sys", "NATS_PASSWORD": "secret", "NATS_URL": node.url}
    done = CliRunner().invoke(cli, ["cluster", *words, "--json"], env=environment)
    assert (done.exit_code != 0) == fails, done.output
    return {"output": done.output} if fails else dict(json.loads(done.stdout))


def test_the_cluster_command_shows_balances_drains_and_removes(tmp_path: Path) -> None:
    async def streams(node: LocalNode) -> None:
        client = await connect(node)
        for number in range(6):
            await create(client, f"S{number}")
            await current(client, f"S{number}")
        await client.close()

    def counts(status: dict[str, Any], what: str) -> dict[str, int]:
        return {server["name"]: server[what] for server in status["servers"]}

    with LocalCluster(tmp_path, size=4, name="ctl", more=SYSTEM) as cluster:
        first, last = cluster.nodes[0], cluster.nodes[-1]
        run(lambda: streams(first))
        leader = command(first, "status")["meta_leader"]
        now = command(first, "step-down")["meta_leader"]
        assert now not in ("", leader)
        assert command(first, "step-down", "--to", leader)["meta_leader"] == leader
        refused = command(first, "step-down", "--to", leader, fails=True)
        assert "is already leader" in refused["output"]
        drained = command(first, "drain", last.name, "--wait", "60")
        assert counts(drained, "replicas") == {
            node.name: 0 if node is last else 6 for node in cluster.nodes
        }
        balanced = command(first, "rebalance")

        def even() -> bool:
            led = counts(command(first, "status"), "leaders")
            return led[last.name] == 0 and max(led.values()) <= 3

        deadline = time.monotonic() + 30
        while not even():
            assert time.monotonic() < deadline, balanced
            time.sleep(0.1)
        back = command(first, "add", last.name)
        assert {server["state"] for server in back["servers"]} == {"member"}
        gone = command(last, "remove", last.name, "--wait", "60")  # the others are asked then
        assert last.name not in counts(gone, "replicas")
        assert "not a member" in command(first, "remove", "nobody", fails=True)["output"]
        user = CliRunner().invoke(cli, ["cluster", "status"], env={"NATS_URL": first.url})
        assert "needs a user of the system account" in user.output
