"""The example of raft/README.md runs as it stands."""

from __future__ import annotations

import asyncio
import re
import socket
from pathlib import Path
from typing import Any

README = Path(__file__).parents[2] / "raft" / "README.md"


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def test_replicated_dict_of_the_readme(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)

    async def run() -> None:
        peers = dict(zip("abc", free_ports(3), strict=True))
        nodes = [
            await names["node"](name, port, peers, str(tmp_path / name))
            for name, port in peers.items()
        ]
        try:
            async with asyncio.timeout(30):
                await names["put"](nodes, "colour", "green")
                await names["put"](nodes, "size", 3)
                assert await names["get"](nodes, "colour") == "green"
                while any(state.values != {"colour": "green", "size": 3} for _, state, *_ in nodes):
                    await asyncio.sleep(0.005)
        finally:
            for host, _, task, transport, store in nodes:
                await transport.stop()
                await host.stop()
                await task
                store.close()

    asyncio.run(run())


def test_the_example_is_short() -> None:
    block = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[0]
    code = [line for line in block.splitlines() if line and "import" not in line]
    assert len(code) <= 32
