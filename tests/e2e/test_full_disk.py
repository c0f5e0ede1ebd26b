"""A disk that fills up: publishes are refused, nothing is lost, and space ends the refusals."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.local import LocalCluster
from tests.support.clusters import connect, eventually, run

SMALL, LARGE = "48m", "600m"
BODY = 16_000
REFUSED = {"code": 503, "err_code": 10023, "description": "insufficient resources"}


def mount(*words: str) -> None:
    done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no small file system can be mounted here: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs root and mount")
    place = tmp_path / "disk"
    place.mkdir()
    mount("-t", "tmpfs", "-o", f"size={SMALL}", "none", str(place))
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


async def fill(client: Any, bodies: dict[int, bytes]) -> int:
    """Publish in windows until something is refused; acked payloads go to `bodies` by sequence.
    Return how many were refused."""
    inbox = await client.subscribe("acks.*")
    refused = number = 0
    while not refused:
        sent = {}
        for _ in range(64):
            number += 1
            sent[number] = os.urandom(BODY)
            await client.publish("f", sent[number], reply=f"acks.{number}")
        for _ in sent:
            answer = await inbox.next_msg(timeout=60)
            body = json.loads(answer.data)
            if "error" in body:
                assert body == {"error": REFUSED, "stream": "F", "seq": 0}
                refused += 1
            else:
                bodies[body["seq"]] = sent[int(answer.subject.rpartition(".")[2])]
    await inbox.unsubscribe()
    return refused


async def stored(client: Any, bodies: dict[int, bytes]) -> None:
    for seq, body in bodies.items():
        message = await client.jetstream().get_msg("F", seq)
        assert message.data == body, f"message {seq}"


def test_a_full_disk_refuses_publishes_until_there_is_space(tmp_path: Path, disk: Path) -> None:
    with LocalCluster(disk, size=1, name="full") as server:

        async def work() -> None:
            client = await connect(*server.nodes)
            stream = client.jetstream()
            await stream.add_stream(name="F", subjects=["f"])
            await stream.add_stream(name="M", subjects=["m"], storage="memory")
            bodies: dict[int, bytes] = {}
            await fill(client, bodies)
            assert (await stream.publish("m", b"x")).seq == 1, "a memory stream still accepts"
            assert (await stream.get_last_msg("M", "m")).data == b"x"
            await stored(client, bodies)
            mount("-o", f"remount,size={LARGE}", str(disk))

            async def accepted() -> bool:
                answer = json.loads((await client.request("f", b"after", timeout=5)).data)
                return "error" not in answer

            await eventually(accepted, "a publish after there is space")
            await stored(client, bodies)
            assert (await stream.publish("m", b"y")).seq == 2
            await client.close()
            server.nodes[0].kill()
            server.nodes[0].start()
            server.nodes[0].wait_healthy()
            client = await connect(*server.nodes)
            await stored(client, bodies)
            await client.close()

        run(work)
