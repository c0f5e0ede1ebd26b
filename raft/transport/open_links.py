"""Every connection of this node, in either direction and any state, until it is closed.

Owns: the set of open links, and the traffic counts of closed ones.
May not touch: what links carry; which node a link belongs to (raft/transport/peer_table.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from raft.transport.frame_guard import FrameError
from raft.transport.link import Link, LinkCounts
from raft.transport.refusals import Refusals

_LINGER_SECONDS: Final = 0.5  # for queued frames to leave when the transport stops


class OpenLinks:
    def __init__(self, refusals: Refusals) -> None:
        self._refusals = refusals
        self._links: set[Link] = set()
        self._none_left = asyncio.Event()
        self._closed_counts = LinkCounts(0, 0, 0, 0)
        self._recently_closed: list[LinkCounts] = []  # summed up now and then

    def made(self, link: Link) -> None:
        self._links.add(link)
        self._none_left.clear()

    def lost(self, link: Link, error: BaseException | None) -> None:
        if isinstance(error, FrameError):
            self._refusals.count("frame")
        self._recently_closed.append(link.counts())
        self._links.discard(link)
        if not self._links:
            self._none_left.set()

    def fold_counts(self) -> None:
        self._closed_counts = _total([self._closed_counts, *self._recently_closed])
        self._recently_closed.clear()

    def total_counts(self, standing: Iterable[Link]) -> LinkCounts:
        """The sum over closed links and these."""
        self.fold_counts()
        return _total([self._closed_counts, *(link.counts() for link in standing)])

    async def drain(self) -> None:
        """Return when every connection is closed; abort those that are open after a while."""
        await asyncio.sleep(0)  # let connections that are just closing end
        if not self._links:
            return
        try:
            async with asyncio.timeout(_LINGER_SECONDS):
                await self._none_left.wait()
        except TimeoutError:
            for link in self._links:
                link.abort()
            await self._none_left.wait()


def _total(counts: list[LinkCounts]) -> LinkCounts:
    return LinkCounts(*(sum(column) for column in zip(*counts, strict=True)))
