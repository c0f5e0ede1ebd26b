"""A disk that fills up: publishes are refused, nothing is lost; space, also freed, ends it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from nats.js.api import ConsumerConfig

from broker.local import LocalCluster
from tests.support.clusters import WITHIN_S, connect, eventually, run

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
            answer = await inbox.next_msg(timeout=WITHIN_S)
            body = json.loads(answer.data)
            if "error" in body:
                assert body == {"error": REFUSED, "stream": "F", "seq": 0}
                refused += 1
            else:
                bodies[body["seq"]] = sent[int(answer.subject.rpartition(".")[2])]
    await inbox.unsubscribe()
    return refused


def scraped(server: LocalCluster, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{server.nodes[0].http_port}{path}") as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def gauge(server: LocalCluster, name: str) -> float:
    lines = scraped(server, "/metrics")[1].splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


async def stored(client: Any, bodies: dict[int, bytes]) -> None:
    stream = client.jetstream(timeout=WITHIN_S)
    for sequences in batched(bodies, 64):
        messages = await asyncio.gather(*(stream.get_msg("F", seq) for seq in sequences))
        for seq, message in zip(sequences, messages, strict=True):
            assert message.data == bodies[seq], f"message {seq}"


def batched(sequences: Iterable[int], size: int) -> Iterator[list[int]]:
    each = iter(sequences)
    while part := list(islice(each, size)):
        yield part


def test_a_full_disk_refuses_publishes_until_there_is_space(tmp_path: Path, disk: Path) -> None:
    with LocalCluster(disk, size=1, name="full") as server:

        async def work() -> None:
            client = await connect(*server.nodes)
            stream = client.jetstream(timeout=WITHIN_S)
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


def test_a_full_disk_can_be_read_and_emptied(tmp_path: Path, disk: Path) -> None:
    """Pulls and acks, a deleted message, a lower limit and a purge, all on a full disk."""
    with LocalCluster(disk, size=1, name="emptied") as server:

        async def work() -> None:
            client = await connect(*server.nodes)
            stream = client.jetstream(timeout=WITHIN_S)
            info = await stream.add_stream(name="F", subjects=["f"])
            await stream.add_consumer("F", ConsumerConfig(durable_name="c"))
            bodies: dict[int, bytes] = {}
            total = gauge(server, "jetraft_disk_bytes")
            assert gauge(server, "jetraft_disk_reserve_bytes") == total // 4, "it is tiny"

            async def filled() -> bool:
                """A full disk cuts the log, and may have space for more messages then: what is
                said of a full disk is looked at while it is one."""
                await fill(client, bodies)
                used = total - gauge(server, "jetraft_disk_free_bytes")
                full = gauge(server, "jetraft_disk_full") == 1
                health = [scraped(server, f"/healthz{query}")[0] for query in ("", "?ready=true")]
                return full and used / (len(bodies) * BODY) < 1.5 and health == [503, 200]

            what = "less than 1.5 bytes of disk per stored byte, not healthy, but to be reached"
            await eventually(filled, what)

            pulled = await stream.pull_subscribe_bind("c", "F")
            for message in await pulled.fetch(10, timeout=20):
                await message.ack_sync(timeout=20)
            assert await stream.delete_msg("F", 20)
            config = info.config
            config.max_msgs = len(bodies) // 2
            state = (await stream.update_stream(config)).state
            assert state.messages == len(bodies) // 2

            async def has(share: float) -> bool:
                return gauge(server, "jetraft_disk_free_bytes") > share * total

            await eventually(lambda: has(0.4), "space of a lower limit")
            assert await stream.purge_stream("F")
            await eventually(lambda: has(0.8), "space of a purge")
            await eventually(lambda: stream.publish("f", b"after"), "an ack after the purge")
            assert scraped(server, "/healthz")[0] == 200
            await client.close()

        run(work)
