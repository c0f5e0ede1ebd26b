"""Work that fails leaves no client open, for the collector to find in another test."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest

from broker.local import LocalCluster
from tests.support import server
from tests.support.clients import open_client
from tests.support.clusters import connect, run


class WorkFailed(Exception):
    pass


@pytest.mark.parametrize("killed", [False, True])
def test_the_clients_of_work_that_fails_are_closed(tmp_path: Path, killed: bool) -> None:
    clients: list[Any] = []
    with LocalCluster(tmp_path, size=1, name="one") as cluster:
        [node] = cluster.nodes

        async def work() -> None:
            clients.extend(await asyncio.gather(connect(node), connect(node)))
            if killed:
                node.kill()
            raise WorkFailed

        with pytest.raises(WorkFailed):
            run(work)
    assert [client.is_closed for client in clients] == [True, True]
    clients.clear()
    gc.collect()  # what is still open makes this test fail, not one that comes later


def test_the_clients_of_a_test_in_one_process_that_fails_are_closed() -> None:
    clients: list[Any] = []

    async def test() -> None:
        async with server.running() as running:
            clients.append(await open_client(f"nats://127.0.0.1:{running.port}"))
            raise WorkFailed

    with pytest.raises(WorkFailed):
        server.run(test())
    assert [client.is_closed for client in clients] == [True]
    clients.clear()
    gc.collect()


def test_a_client_that_nobody_would_close_is_not_opened() -> None:
    with pytest.raises(LookupError):
        asyncio.run(open_client("nats://127.0.0.1:1"))
