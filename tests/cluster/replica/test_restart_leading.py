"""A leader whose proposal was refused starts its engines again, from a state that is complete."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.cluster.replica import replica as module
from broker.cluster.replica.replica import Replica
from tests.support.cluster_fakes import run


class Closed:
    closed = False

    def close(self) -> None:
        self.closed = True


def test_engines_start_again_when_what_they_proposed_is_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Engines that begin earlier deliver again what entries under way settle."""
    monkeypatch.setattr(module, "RESUME_EVERY_S", 0.0)
    begun = asyncio.Event()

    def leadership(*_: Any) -> str:
        begun.set()
        return "new"

    monkeypatch.setattr(module, "Leadership", leadership)

    async def test() -> None:
        lost = Closed()
        stream = SimpleNamespace(applied=4)
        services = SimpleNamespace(delivery=None)
        replica = SimpleNamespace(leading=lost, stream=stream, _proposed=5, _services=services)
        replica._resume_leading = lambda one: Replica._resume_leading(cast(Any, replica), one)
        Replica._restart_leading(cast(Any, replica), cast(Any, lost))
        for _ in range(10):
            await asyncio.sleep(0)
        assert lost.closed
        assert replica.leading is lost  # and requests are not taken: it is closed
        assert not begun.is_set()
        stream.applied = 5
        async with asyncio.timeout(10):
            await begun.wait()
        assert replica.leading == "new"

    run(test())
