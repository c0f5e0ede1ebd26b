"""Read indexes for followers: the leader's applied index, requested after a read has arrived. A
follower that has applied up to it can show everything that was acknowledged before.

Owns: the calls to the leaders, one in flight per group. Reads that arrive meanwhile share the next
call, because the answer to the one in flight may be older than they are.
May not touch: the log, what is read.
Spec: Raft thesis 6.4, reads served by followers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from broker.cluster.peers.rpc import CallFailed
from broker.jetstream.errors import JetStreamError
from raft import Index

logger = logging.getLogger("jetraft.cluster")

Ask = Callable[[int], Awaitable[Index]]


@dataclass(slots=True)
class ReadIndexes:
    """`ask` gets the index of a group from its leader, which answers only while it knows that it
    leads. It raises CallFailed, JetStreamError or TimeoutError."""

    ask: Ask
    spawn: Callable[[Awaitable[None], str], object]
    _next: dict[int, asyncio.Future[Index | None]] = field(default_factory=dict)
    _under_way: set[int] = field(default_factory=set)

    async def get(self, group: int) -> Index | None:
        """None: the leader did not answer."""
        future = self._next.get(group)
        if future is None:
            future = asyncio.get_running_loop().create_future()
            self._next[group] = future
        if group not in self._under_way:
            self._under_way.add(group)
            self.spawn(self._ask_while_wanted(group), "read index")
        return await asyncio.shield(future)  # cancelling one reader must not cancel the others

    async def _ask_while_wanted(self, group: int) -> None:
        try:
            while (future := self._next.pop(group, None)) is not None:
                index: Index | None = None
                try:
                    index = await self.ask(group)
                except (CallFailed, JetStreamError, TimeoutError) as problem:
                    logger.debug("no read index of group %d: %s", group, problem)
                finally:
                    future.set_result(index)
        finally:
            self._under_way.discard(group)
