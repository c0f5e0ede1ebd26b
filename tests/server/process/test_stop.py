"""The end of a node: it ends also when something cannot be closed."""

from __future__ import annotations

from typing import Any

import pytest

from broker.cluster.runtime import Runtime
from broker.main import Broker
from broker.server.process.tasks import Tasks
from tests.support.server import local, run


def test_a_node_whose_store_cannot_be_closed_ends_nevertheless() -> None:
    """Otherwise a node with a failing disk stays after SIGTERM: linked to its peers, of no use."""

    class Unclosable(Runtime):
        async def stop(self) -> None:
            raise OSError("the disk does not work")

    def runtime(options: Any) -> Any:
        return Unclosable(options)

    async def scenario() -> None:
        async with Tasks() as tasks:
            broker = Broker(local(), tasks, runtime=runtime)
            await broker.start()
            with pytest.raises(OSError, match="does not work"):
                await broker.stop()
            assert broker.finished.is_set()

    run(scenario())
