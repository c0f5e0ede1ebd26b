"""How much each node stores, for placement. Nodes announce it in their hello.

Owns: the size that this node announces, and when it is announced again.
May not touch: the counting (usage.py), the choice of nodes (broker/cluster/meta/placement.py).
Bound: at most one change of the hello every TELL_EVERY_S, and none for small changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from raft import NodeId

KEY: Final = "stored_bytes"  # in the hello
TELL_EVERY_S: Final = 5.0
CHANGE_MIN: Final = 16 << 20  # bytes; or an eighth of the announced size, if that is more


class HelloOfNodes(Protocol):
    """The mesh."""

    def tell(self, **facts: int) -> None: ...

    def fact(self, node: NodeId, name: str) -> int: ...


@dataclass(slots=True)
class StoredBytes:
    """`run` is a task of the node."""

    hello: HelloOfNodes
    stored: Callable[[], int]  # by this node
    _told: int = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(TELL_EVERY_S)
            self.check()

    def check(self) -> None:
        stored = self.stored()
        if abs(stored - self._told) > max(CHANGE_MIN, self._told // 8):
            self._told = stored
            self.hello.tell(stored_bytes=stored)

    def of(self, node: NodeId) -> int:
        """0 if the node has not announced it."""
        return self.hello.fact(node, KEY)
