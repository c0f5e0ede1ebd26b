"""Shared by the end-to-end tests: clients, conditions to wait for, ports for `jetraft up`."""

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

from broker.local import LocalCluster, LocalNode, PortBlock
from tests.support.clients import closing_clients, open_client

T = TypeVar("T")
WITHIN_S = 60.0  # generous: the machine may be slow and shared
# `jetraft up --port` adds 2000 for routes and 4000 for monitoring: all three stay below
# broker.local.PORTS.
FIRST_PORTS = range(14_000, 16_000)
NODES_MAX = 10


def run(work: Callable[[], Awaitable[T]]) -> T:
    """Run the work with a timeout, and close the clients that it opened."""

    async def bounded() -> T:
        async with closing_clients(), asyncio.timeout(3 * WITHIN_S):
            return await work()

    return asyncio.run(bounded())


async def connect(*nodes: LocalNode) -> Any:
    async def quiet(_: Exception) -> None:
        """These tests lose connections on purpose."""

    return await open_client(
        [node.url for node in nodes], max_reconnect_attempts=-1, reconnect_time_wait=0.1,
        error_cb=quiet,
    )  # fmt: skip


async def eventually(check: Callable[[], Awaitable[Any]], what: str) -> Any:
    """Return the first true result of `check`; an error of a cluster that is not ready is a no."""
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


async def newest_features(cluster: LocalCluster) -> None:
    """Wait until all features are in use: half a second or more after the cluster was founded, and
    only while every node is up."""

    async def used() -> bool:
        return any("the cluster uses it" in node.log_path.read_text() for node in cluster.nodes)

    await eventually(used, "all features are in use")


async def leader_of(client: Any, cluster: LocalCluster, stream: str) -> LocalNode:
    async def leader() -> str | None:
        info = await client.jetstream().stream_info(stream)
        return str(info.cluster.leader) if info.cluster and info.cluster.leader else None

    name = await eventually(leader, f"a leader of {stream}")
    return next(node for node in cluster.nodes if node.name == name)


def port_for_up() -> int:
    """A value for `jetraft up --port` that no other test, in this process or another, is given."""
    return PortBlock(FIRST_PORTS, NODES_MAX).ports.start


def restart_all(cluster: LocalCluster) -> None:
    """Kill every node before the first one starts again; return when all are healthy."""
    for node in cluster.nodes:
        node.kill()
    for node in cluster.nodes:
        node.start()
    for node in cluster.nodes:
        node.wait_healthy()


def nats_server() -> list[str]:
    """The command of the real server: next to the interpreter, or on the PATH."""
    found = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which(
        "nats-server"
    )
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("nats-server is not installed")
        pytest.skip("nats-server is not installed")
    return [found]
