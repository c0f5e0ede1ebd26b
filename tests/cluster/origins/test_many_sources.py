"""The readers of a stream with very many sources begin a few per turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.cluster.origins import mirroring
from broker.cluster.origins.mirroring import MirrorsAndSources
from broker.jetstream.config.stream_config import StreamConfig, StreamSource
from tests.support.cluster_fakes import run

COUNT, PER_TURN_MAX = 41, 8


class Reader:
    """Reads nothing, until it is cancelled."""

    def __init__(self, _access: object, _replica: object, source: StreamSource, _: object) -> None:
        self.source = source
        self.task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        await asyncio.Event().wait()


def led(count: int) -> Any:
    sources = tuple(StreamSource(name=f"X{at}") for at in range(count))
    stream = SimpleNamespace(config=StreamConfig(name="Y", sources=sources))
    return SimpleNamespace(group=7, name="Y", stream=stream)


@pytest.mark.parametrize("end", ["none", "other sources", "not led"])
def test_a_turn_starts_a_few_readers(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them took one step of 48 ms, and a turn that was longer still."""
    monkeypatch.setattr(mirroring, "OriginReader", Reader)

    async def test() -> None:
        async with asyncio.TaskGroup() as tasks:

            def spawn(work: Awaitable[None], name: str) -> object:
                return tasks.create_task(cast(Any, work), name=name)

            origins = MirrorsAndSources(cast(Any, None), spawn)
            replica = led(COUNT)
            origins.leadership_changed(replica, True)
            counts = [0, len(origins._running[7])]
            for turn in range(40):
                if turn == 3 and end == "other sources":
                    replica.stream = led(2).stream
                    origins.reconfigured(replica)
                if turn == 3 and end == "not led":
                    origins.leadership_changed(replica, False)
                await asyncio.sleep(0)
                counts.append(len(origins._running.get(7, {})))
            growth = [later - before for before, later in pairwise(counts)]
            assert max(growth) <= PER_TURN_MAX
            assert counts[-1] == {"none": COUNT, "other sources": 2, "not led": 0}[end]
            origins.leadership_changed(replica, False)
            assert not origins._running
            assert not origins._wanted

    run(test())
