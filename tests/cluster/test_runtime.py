"""What a server of a cluster needs before it starts, and with whom it founds a cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from broker.cluster.meta.feature_level import TooNew
from broker.cluster.peers.mesh import Mesh
from broker.cluster.runtime import Runtime, build
from broker.cluster.stream_node import StreamNode
from broker.config.options import ClusterOptions, JetStreamOptions, Options
from broker.server.services import StartFailed
from raft.types import NodeId

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


def test_the_table_of_a_newer_version_is_not_damage() -> None:
    """A version that is too old does not start. It gives up nothing, though it has peers."""

    def load() -> None:
        raise TooNew("the cluster has feature level 9")

    wiped: list[int] = []
    node = SimpleNamespace(
        meta_group=SimpleNamespace(load=load),
        mesh=SimpleNamespace(transport=object()),
        storage=SimpleNamespace(wipe_state=wiped.append),
    )
    with pytest.raises(StartFailed, match=r"has feature level 9\. Nothing was changed"):
        StreamNode._load_table(cast(Any, node))
    assert not wiped


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
