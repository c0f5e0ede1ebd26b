"""What the end-to-end tests share: a client per test, and waiting for conditions."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import nats
import nats.errors
import nats.js.errors
import pytest

from broker.local import LocalCluster, LocalNode

T = TypeVar("T")
WITHIN_S = 60.0  # generous: the machine may be slow and shared


def run(work: Callable[[], Awaitable[T]]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(3 * WITHIN_S):
            return await work()

    return asyncio.run(bounded())


async def connect(*nodes: LocalNode) -> Any:
    async def quiet(_: Exception) -> None:
        """Lost connections are part of these tests."""

    return await nats.connect(
        [node.url for node in nodes], max_reconnect_attempts=-1, reconnect_time_wait=0.1,
        error_cb=quiet,
    )  # fmt: skip


async def eventually(check: Callable[[], Awaitable[Any]], what: str) -> Any:
    """The first true answer of `check`; errors of a cluster that is not ready yet count as no."""
    deadline = time.monotonic() + WITHIN_S
    while True:
        try:
            answer = await check()
        except (nats.errors.Error, nats.js.errors.Error, OSError):
            answer = None
        if answer:
            return answer
        if time.monotonic() > deadline:
            pytest.fail(f"not within {WITHIN_S} s: {what}")
        await asyncio.sleep(0.05)


async def leader_of(client: Any, cluster: LocalCluster, stream: str) -> LocalNode:
    async def leader() -> str | None:
        info = await client.jetstream().stream_info(stream)
        return str(info.cluster.leader) if info.cluster and info.cluster.leader else None

    name = await eventually(leader, f"a leader of {stream}")
    return next(node for node in cluster.nodes if node.name == name)


def restart_all(cluster: LocalCluster) -> None:
    """Every node is killed before the first one starts again; then all are well."""
    for node in cluster.nodes:
        node.kill()
    for node in cluster.nodes:
        node.start()
    for node in cluster.nodes:
        node.wait_healthy()


def nats_server() -> list[str]:
    """The real server, where it is installed: next to the interpreter, or on the PATH."""
    found = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which(
        "nats-server"
    )
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("nats-server is not installed")
        pytest.skip("nats-server is not installed")
    return [found]
