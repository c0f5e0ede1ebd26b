"""Two clusters of three: documents and infos have the same fields, or the difference is written
down (tests/interop/parity/differences.py). Values differ with the leaders, so names are compared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fnmatch import fnmatch
from typing import Any

import pytest

from broker.local import LocalCluster
from tests.support.clients import open_client
from tests.support.clusters import eventually, nats_server, run

Clusters = tuple[LocalCluster, LocalCluster]
STREAMS = {"ONE": 1, "THREE": 3}
DETAILS = "/jsz?accounts=1&streams=1&consumers=1&config=1&raft=1"
DIFFERENT = (
    "/varz *git_commit", "/varz *feature_flags*", "/varz *disk_io_wait_stats*",
    "/varz .max_subscriptions", "/varz .tags", "/varz .cluster.pool_size", "/varz *.scans*",
    "* *.default_max_consumers", "* *.sync_always", "* *.offline", "* *meta*.snapshot*",
    "/routez .routes[].account", "/jsz* *.applied", "/jsz* *.leads",
)  # fmt: skip


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    place = tmp_path_factory.mktemp("clusters")
    with (
        LocalCluster(place / "ours", 3, "c") as ours,
        LocalCluster(place / "real", 3, "c", command=nats_server()) as theirs,
    ):
        run(lambda: _filled(ours))
        run(lambda: _filled(theirs))
        yield ours, theirs


async def _filled(cluster: LocalCluster) -> None:
    for name, replicas in STREAMS.items():
        config = {"name": name, "subjects": [name.lower()], "num_replicas": replicas}
        await _api(cluster, f"STREAM.CREATE.{name}", config)
        consumer = {"stream_name": name, "config": {"durable_name": "C", "ack_policy": "explicit"}}
        await _api(cluster, f"CONSUMER.DURABLE.CREATE.{name}.C", consumer)


async def _api(cluster: LocalCluster, subject: str, body: object = None) -> Any:
    client = await open_client(cluster.nodes[0].url)
    try:
        payload = json.dumps(body).encode() if body is not None else b""
        answer = await client.request(f"$JS.API.{subject}", payload, timeout=20)
        return json.loads(answer.data)
    finally:
        await client.close()


def fields(value: Any, path: str = "") -> set[str]:
    if isinstance(value, dict):
        inner = [fields(one, f"{path}.{name}") for name, one in value.items()]
        return {f"{path}.{name}" for name in value}.union(*inner)
    if isinstance(value, list):
        return set().union(*(fields(one, f"{path}[]") for one in value))
    return set()


def unexplained(what: str, ours: Any, theirs: Any) -> list[str]:
    changed = fields(ours) ^ fields(theirs)
    return sorted(
        path for path in changed if not any(fnmatch(f"{what} {path}", one) for one in DIFFERENT)
    )


def _led(cluster: LocalCluster) -> Any:
    """The stream with three replicas, as the node shows it that knows them: its leader."""

    async def details() -> Any:
        found = [_stream(node.http(DETAILS), "THREE") for node in cluster.nodes]
        led = [one for one in found if one.get("cluster", {}).get("leader_since")]
        return led[0] if led else None

    return run(lambda: eventually(details, "a leader that shows its replicas"))


def _stream(document: Any, name: str) -> Any:
    accounts = document.get("account_details", [])
    details = [one for account in accounts for one in account.get("stream_detail", [])]
    return next((one for one in details if one["name"] == name), {})


@pytest.mark.parametrize("path", ["/varz", "/routez", "/jsz", "/accountz", "/connz", "/leafz"])
def test_documents_of_a_cluster_have_the_same_fields(clusters: Clusters, path: str) -> None:
    ours, theirs = (cluster.nodes[0].http(path) for cluster in clusters)
    assert not unexplained(path, ours, theirs)


def test_leaders_show_the_same_details(clusters: Clusters) -> None:
    ours, theirs = (_led(cluster) for cluster in clusters)
    for document in (ours, theirs):  # in nats-server a consumer has another leader
        document["consumer_detail"] = [
            {**one, "cluster": None} for one in document["consumer_detail"]
        ]
    assert not unexplained("/jsz", ours, theirs)


@pytest.mark.parametrize("subject", ["STREAM.INFO.{}", "CONSUMER.INFO.{}.C"])
@pytest.mark.parametrize("stream", STREAMS)
def test_infos_of_a_cluster_have_the_same_fields(
    clusters: Clusters, subject: str, stream: str
) -> None:
    asked = subject.format(stream)

    async def alike() -> bool:
        ours, theirs = [await _api(cluster, asked) for cluster in clusters]
        return not unexplained(subject, ours, theirs)

    # nats-server shows a consumer as behind for a moment after its creation
    run(lambda: eventually(alike, f"the same fields in {asked}"))
