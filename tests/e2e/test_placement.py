"""Zones, tags and replacements on real nodes, and nodes that may not join."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.local import LocalCluster, LocalNode, free_ports
from tests.support.clusters import connect, eventually, run

NAME = "zones"
OWN = "authorization { user: peer, password: right }"
TAGS = ['"az:a"', '"az:b"', '"az:c", "fast"', '"fast"']  # the last one has no zone


def configure(node: LocalNode, routes: list[int], tags: str, authorization: str = OWN) -> None:
    node.write_config(
        cluster=NAME,
        routes=routes,
        jetstream='unique_tag: "az:", replace_after: "2s"',
        more=f"server_tags: [{tags}]",
    )
    text = node.config_path.read_text()
    node.config_path.write_text(text.replace("cluster {", f"cluster {{ {authorization},"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    running = LocalCluster(tmp_path_factory.mktemp(NAME), size=4, name=NAME)
    running.prepare()
    routes = [node.route_port for node in running.nodes]
    for node, tags in zip(running.nodes, TAGS, strict=True):
        configure(node, routes, tags)
    with running:
        yield running


async def ask(client: Any, subject: str, **body: object) -> dict[str, Any]:
    answer = await client.request(f"$JS.API.{subject}", json.dumps(body).encode(), timeout=10)
    return dict(json.loads(answer.data))


async def create(client: Any, name: str, replicas: int, **more: object) -> dict[str, Any]:
    config = {"name": name, "subjects": [name], "num_replicas": replicas, **more}
    return await ask(client, f"STREAM.CREATE.{name}", **config)


async def places(client: Any, name: str) -> set[str]:
    """The nodes of its replicas, if all are current."""
    group = (await ask(client, f"STREAM.INFO.{name}")).get("cluster", {})
    others = group.get("replicas", [])
    if not all(peer["current"] for peer in others):
        return set()
    return {group.get("leader", ""), *(peer["name"] for peer in others)}


@pytest.mark.parametrize(
    ("name", "authorization", "sentence"),
    [
        ("zones-2", OWN, 'another server has the name "zones-2"'),
        ("thief", OWN.replace("right", "wrong"), "does not have the credentials"),
    ],
)
def test_a_node_with_a_name_in_use_or_wrong_credentials_stays_out(
    cluster: LocalCluster, tmp_path: Path, name: str, authorization: str, sentence: str
) -> None:
    member = cluster.nodes[0]
    client, http, route = free_ports(3)
    node = LocalNode(name, tmp_path / name, client, http, route, member.command)
    configure(node, [member.route_port], '"az:d"', authorization)
    node.start()
    try:

        async def told() -> bool:
            return all(sentence in one.log_tail(100) for one in (node, member))

        run(lambda: eventually(told, sentence))
        assert not node.healthy()
    finally:
        node.kill()
    assert all(node.healthy() for node in cluster.nodes)
    meta: Any = member.http("/jsz")["meta_cluster"]
    assert meta["cluster_size"] == len(cluster.nodes)


def test_zones_tags_and_replacements(cluster: LocalCluster) -> None:
    """Every zone gets one replica; a replica whose node stays away moves within its zone."""
    first, second, third, _ = cluster.nodes
    zones = {first.name, second.name, third.name}

    async def work() -> None:
        client = await connect(first)
        assert "error" not in await create(client, "SPREAD", 3)
        await eventually(lambda: _is(client, "SPREAD", zones), "one replica in every zone")
        assert "error" not in await create(client, "TAGGED", 1, placement={"tags": ["az:b"]})
        assert await places(client, "TAGGED") == {second.name}
        # Fields that are accepted have their effect, also later.
        moved = await ask(client, "STREAM.UPDATE.TAGGED", name="TAGGED", subjects=["TAGGED"],
                          num_replicas=1, placement={"tags": ["fast"]})  # fmt: skip
        assert "error" not in moved
        await eventually(lambda: _is(client, "TAGGED", {third.name}), "the stream has moved")

        for replicas, placement, sentence in (
            (3, {"tags": ["fast"]}, "tags not matched ['fast']"),
            (1, {"tags": ["az:x"]}, "tags not matched ['az:x']"),
            (1, {"cluster": "elsewhere"}, "no server is in cluster 'elsewhere'"),
            (5, {}, "(no tag 'az:...' on zones-4)"),
        ):
            error = (await create(client, "REFUSED", replicas, placement=placement))["error"]
            assert error["err_code"] == 10005
            assert sentence in error["description"]
        listed = (await ask(client, "STREAM.NAMES"))["streams"]
        assert listed == ["SPREAD", "TAGGED"]  # nothing has changed

        spare = cluster.add()
        configure(spare, [node.route_port for node in cluster.nodes], '"az:b"')
        spare.start()
        spare.wait_healthy()
        second.kill()
        left = zones - {second.name} | {spare.name}
        await eventually(lambda: _is(client, "SPREAD", left), "the zone has its replica again")
        await client.close()

    run(work)


async def _is(client: Any, name: str, nodes: set[str]) -> bool:
    return await places(client, name) == nodes
