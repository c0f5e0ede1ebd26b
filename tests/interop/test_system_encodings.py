"""Compressed answers of the system account, ours and those of the real server."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from broker.compression.s2_stream import S2Reader
from tests.interop.test_leaf_nodes import our_server
from tests.support.clients import open_client
from tests.support.clusters import nats_server
from tests.support.server import PATIENCE, Process, run

CONFIG = (
    'listen: "127.0.0.1:-1"\nserver_name: N\nsystem_account: S\n'
    "accounts { S { users: [{ user: s, password: s }] } }\n"
)
WANTED = ["snappy", "gzip", "s2, gzip", "br"]


def opened(data: bytes, encoding: str | None) -> Any:
    if encoding == "gzip":
        data = gzip.decompress(data)
    elif encoding == "snappy":
        reader, found = S2Reader(), []
        reader.feed(data)
        while reader.more:
            found.append(reader.read())
        data = b"".join(found)
    return json.loads(data)


async def answers(port: int) -> list[Any]:
    client = await open_client(f"nats://127.0.0.1:{port}", user="s", password="s")
    found = []
    for wanted in WANTED:
        for body in (b"", b"no json"):
            answer = await client.request(
                "$SYS.REQ.SERVER.PING.VARZ", body, PATIENCE, headers={"Accept-Encoding": wanted}
            )
            encoding = (answer.headers or {}).get("Content-Encoding")
            document = opened(answer.data, encoding)
            found.append((wanted, body, encoding, sorted(document)))
    await client.close()
    return found


def test_answers_are_compressed_as_those_of_the_real_server(tmp_path: Path) -> None:
    async def work() -> None:
        async with our_server(tmp_path / "ours.conf", CONFIG) as broker:
            ours = await answers(broker.server.port)
        (tmp_path / "real.conf").write_text(CONFIG)
        with Process("-c", str(tmp_path / "real.conf"), command=nats_server()) as real:
            assert ours == await answers(real.port)
        assert [one[2] for one in ours[::2]] == ["snappy", "gzip", "snappy", "identity"]

    run(work())
