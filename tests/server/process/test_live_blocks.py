"""Leaf nodes, WebSocket terms, routes and limits of JetStream change while the server runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.config.load import load, parse_flags
from broker.config.options import LeafNodeOptions, Options
from broker.main import Broker
from broker.server.process.reload import NotReloadable, merge
from broker.subjects import finish
from tests.support.server import PATIENCE, RawClient, run, running, running_broker


def options(tmp_path: Path, text: str) -> Options:
    path = tmp_path / "server.conf"
    path.write_text(f'listen: "127.0.0.1:-1"\n{text}')
    return load(parse_flags(["-c", str(path)])).options


def reload(broker: Broker, wanted: Options) -> None:
    broker.reconfigure(merge(broker.server.options, wanted))


def remotes(*ports: int) -> str:
    urls = ", ".join(f'{{ url: "nats://127.0.0.1:{port}" }}' for port in ports)
    return f"leafnodes {{ reconnect: 1, remotes: [{urls}] }}"


def test_a_hub_is_dialed_and_left_by_a_reload(tmp_path: Path) -> None:
    async def test() -> None:
        port = LeafNodeOptions(host="127.0.0.1", port=-1)
        async with running(leafnodes=port) as hub, running_broker(options(tmp_path, "")) as leaf:
            async with asyncio.timeout(PATIENCE):
                for text, count in (
                    (remotes(hub.leaf_port), 1),
                    ("", 0),
                    (remotes(hub.leaf_port), 1),
                ):
                    reload(leaf, options(tmp_path, text))
                    while len(hub.leafs) != count or len(leaf.server.leafs) != count:
                        await asyncio.sleep(0.01)

    run(test())


SOCKET = "websocket {{ host: 127.0.0.1, port: -1, no_tls: true, {0} }}"


def test_the_terms_of_websockets_change(tmp_path: Path) -> None:
    async def test() -> None:
        before = options(tmp_path, SOCKET.format(""))
        async with running_broker(before) as broker:
            listener = broker.server.websocket
            assert listener is not None
            assert not listener.terms.same_origin
            reload(broker, options(tmp_path, SOCKET.format("same_origin: true, compression: true")))
            assert listener.terms.same_origin
            assert listener.terms.compression
            assert listener.deflater is not None

    run(test())


def test_limits_of_jetstream_change(tmp_path: Path) -> None:
    def limited(size: str) -> Options:
        return options(tmp_path, f'jetstream {{ store_dir: "{tmp_path}", max_mem: {size} }}')

    async def test() -> None:
        async with running_broker(limited("1MB")) as broker:
            assert broker.runtime is not None
            assert finish(broker.runtime.jsz({}))["config"]["max_memory"] == 1 << 20
            reload(broker, limited("2MB"))
            assert finish(broker.runtime.jsz({}))["config"]["max_memory"] == 2 << 20
            reload(broker, limited("-1"))  # what the machine had is not known any more
            assert finish(broker.runtime.jsz({}))["config"]["max_memory"] == 2 << 20

    run(test())


CLUSTER = 'cluster {{ name: c, listen: "127.0.0.1:{0}", routes: [{1}] }}'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (CLUSTER.format(6222, '"nats://a:1"'), CLUSTER.format(6223, '"nats://a:1"')),
        (SOCKET.format(""), SOCKET.format("advertise: x")),
        (SOCKET.format(""), ""),
        ("", 'leafnodes { listen: "127.0.0.1:7422" }'),
        ("port: 4222", "port: 4223"),
    ],
)
def test_ports_stay_what_they_are(tmp_path: Path, before: str, after: str) -> None:
    with pytest.raises(NotReloadable, match="config reload not supported for"):
        merge(options(tmp_path, before), options(tmp_path, after))


def test_routes_may_change(tmp_path: Path) -> None:
    one = options(tmp_path, CLUSTER.format(6222, '"nats://a:1"'))
    two = options(tmp_path, CLUSTER.format(6222, '"nats://a:1", "nats://b:2"'))
    assert merge(one, two) == two


def test_a_reload_that_fails_late_changes_nothing(tmp_path: Path) -> None:
    """The certificate of the last block cannot be read: the limits of the first stay."""

    async def test() -> None:
        async with running_broker(options(tmp_path, "max_payload: 1000")) as broker:
            text = (
                "max_payload: 2000\nleafnodes { remotes: [{ url: x }], "
                'tls { cert_file: "/none", key_file: "/none" } }'
            )
            with pytest.raises(Exception, match="error parsing X509"):
                reload(broker, options(tmp_path, text))
            client = await RawClient.open(broker.server)
            assert client.info["max_payload"] == 1000
            assert broker.server.leaf_listener is None
            client.close()

    run(test())


def test_how_leaf_nodes_are_connected_may_change(tmp_path: Path) -> None:
    before = options(tmp_path, 'leafnodes { listen: "127.0.0.1:7422" }')
    after = (
        'leafnodes { listen: "127.0.0.1:7422", compression: s2_fast, isolate: true, '
        "write_deadline: 3s, dial_timeout: 2s }"
    )
    merged = merge(before, options(tmp_path, after))
    assert merged.leafnodes is not None
    assert merged.leafnodes.compression.mode == "s2_fast"
    assert merged.leafnodes.isolated
