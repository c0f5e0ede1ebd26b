"""What a server of a cluster needs before it starts, and with whom it founds a cluster."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from broker.cluster import cluster_nodes
from broker.cluster.meta import feature_level
from broker.cluster.peers.mesh import Mesh
from broker.cluster.runtime import Runtime, build
from broker.config.options import ClusterOptions, JetStreamOptions, Options
from broker.server.services import StartFailed
from raft.types import NodeId
from tests.support.server import broker_of, run, running, until

ROUTES = ("nats://other:6222",)
OPTIONS = Options(
    server_name="n1",
    jetstream=JetStreamOptions(),
    cluster=ClusterOptions(name="c", routes=ROUTES),
)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (replace(OPTIONS, server_name=""), "requires `server_name`"),
        (replace(OPTIONS, cluster=ClusterOptions(routes=ROUTES)), "requires `cluster.name`"),
        (replace(OPTIONS, cluster=ClusterOptions(name="c")), "requires configured routes"),
        (replace(OPTIONS, jetstream=JetStreamOptions(feature_level=7)), "level 7 is not known"),
    ],
)
def test_a_jetstream_cluster_needs_names_and_routes(options: Options, sentence: str) -> None:
    with pytest.raises(StartFailed, match=sentence):
        build(options)


def test_an_earlier_version_does_not_start_with_the_table_of_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And changes nothing: the newer version starts again."""
    options = JetStreamOptions(store_dir=str(tmp_path))

    async def newer() -> None:
        level = feature_level.NEWEST_LEVEL + 1
        with monkeypatch.context() as patch:
            for module in (feature_level, cluster_nodes):
                patch.setattr(module, "NEWEST_LEVEL", level)
            async with running(jetstream=options) as server:
                runtime = broker_of(server).runtime
                assert isinstance(runtime, Runtime)
                assert runtime.jetstream is not None
                node = runtime.jetstream._node
                await until(lambda: node.assignments.level == level)
                await until(lambda: node.meta_group.is_durable)

    async def earlier() -> None:
        with pytest.raises(StartFailed, match=r"has feature level .* Nothing was changed"):
            async with running(jetstream=options):
                pass

    for work in (newer, earlier, newer, earlier):
        run(work())


def test_without_jetstream_or_without_a_cluster_no_routes_are_needed() -> None:
    build(replace(OPTIONS, cluster=ClusterOptions(), jetstream=None))
    build(replace(OPTIONS, cluster=None))


JETSTREAM, PLAIN, EARLIER = NodeId(1), NodeId(2), NodeId(3)
HELLOS: dict[NodeId, dict[str, Any]] = {
    JETSTREAM: {"jetstream": True},
    PLAIN: {"jetstream": False},
    EARLIER: {},  # a version that does not say so
}


@pytest.mark.parametrize(
    ("seeds", "expected"),
    [
        (set(HELLOS), {JETSTREAM, EARLIER}),
        ({PLAIN}, set()),
        (set(), set()),
        (None, None),
    ],
)
def test_nodes_without_jetstream_are_not_waited_for(
    seeds: set[NodeId] | None, expected: set[NodeId] | None
) -> None:
    peers = {node: SimpleNamespace(hello=hello) for node, hello in HELLOS.items()}
    transport = SimpleNamespace(seed_nodes=lambda: seeds, peers=lambda: peers)
    runtime = Runtime(OPTIONS)
    mesh = object.__new__(Mesh)
    mesh.transport = cast(Any, transport)
    runtime.mesh = mesh
    assert runtime._expected_nodes() == expected
