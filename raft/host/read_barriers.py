"""Callers that wait until a read would be linearizable.

Owns: the futures of one group's read barriers, from the question to the applied index.
May not touch: the core (the host asks it), the machine.
Spec: thesis 6.4, steps 3 and 4."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from raft.core.ready import ReadState
from raft.types import Index, NodeId, NotLeader


class Barriers:
    __slots__ = ("_asked", "_confirmed", "_last")

    def __init__(self) -> None:
        self._asked: dict[int, asyncio.Future[Index]] = {}
        self._confirmed: list[tuple[Index, asyncio.Future[Index]]] = []
        self._last = 0

    def open(self, future: asyncio.Future[Index]) -> int:
        """The context under which to ask the core."""
        self._last += 1
        self._asked[self._last] = future
        return self._last

    def drop(self, context: int) -> None:
        self._asked.pop(context, None)

    def confirmed(self, reads: Sequence[ReadState]) -> None:
        for read in reads:
            future = self._asked.pop(read.context, None)
            if future is not None:
                self._confirmed.append((read.index, future))

    def applied(self, index: Index) -> None:
        if not self._confirmed:
            return
        waiting, self._confirmed = self._confirmed, []
        for needed, future in waiting:
            if needed > index:
                self._confirmed.append((needed, future))
            elif not future.done():
                future.set_result(index)

    def fail(self, leader: NodeId | None) -> None:
        """We lead no more: nobody here can say what is committed."""
        futures = [*self._asked.values(), *(future for _, future in self._confirmed)]
        self._asked.clear()
        self._confirmed.clear()
        for future in futures:
            if not future.done():
                future.set_exception(NotLeader(leader))
