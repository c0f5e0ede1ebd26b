"""WebSocket clients against a running server: the official client, and frames by hand."""

from __future__ import annotations

import nats
import pytest

from broker.config.options import WebSocketOptions
from broker.server.server import Server
from tests.server.support import PATIENCE, run, running

# nats-py calls aiohttp the old way
pytestmark = pytest.mark.filterwarnings("ignore:parameter 'timeout' of type:DeprecationWarning")
PLAIN = WebSocketOptions(host="127.0.0.1", port=-1, no_tls=True)


def url(server: Server) -> str:
    assert server.door is not None
    return f"{server.door.scheme}://localhost:{server.door.port}"


def test_the_official_client_publishes_and_subscribes() -> None:
    async def test() -> None:
        async with running(websocket=PLAIN) as server:
            client = await nats.connect(url(server), allow_reconnect=False)
            plain = await nats.connect(f"nats://127.0.0.1:{server.port}", allow_reconnect=False)
            sub = await plain.subscribe("up")
            await plain.flush()
            await client.publish("up", b"over the web", headers={"a": "b"})
            message = await sub.next_msg(timeout=PATIENCE)
            assert (message.data, message.headers) == (b"over the web", {"a": "b"})
            sub = await client.subscribe("down")
            await client.flush()
            payload = b"x" * 900_000
            await plain.publish("down", payload)
            assert (await sub.next_msg(timeout=PATIENCE)).data == payload
            await client.close()
            await plain.close()

    run(test())
