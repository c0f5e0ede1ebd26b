"""The applied state on its way to the disk, and erased messages on their way out of it.

Owns: when the state of all groups is flushed, so that logs can be cut behind it; when what was
securely erased has to leave the log and the database files; loading the state anew when the disk
had failed.
May not touch: what a checkpoint holds (broker.store), where a log may be cut (raft.compaction).
Spec: DESIGN section 5. Erasing for good rewrites the database, so erasures gather, and the next
rewrite waits for a multiple of what the last one took: however often messages are erased, only a
small part of the time goes into it, and everything erased is gone after two such turns."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from broker.cluster.meta.meta_group import eventually
from raft import GroupId, Index
from raft.store.records import StoreFailed

if TYPE_CHECKING:
    from broker.cluster.node import JetStreamNode
    from broker.cluster.replica.replica import Replica

logger = logging.getLogger("jetraft.cluster")

FLUSH_EVERY_S: Final = 10.0
FLUSH_ABOVE_BYTES: Final = 64 << 20
ERASE_AFTER_S: Final = 1.0  # erasures of this time go together
ERASE_SHARE: Final = 20  # one part in so many of the time may go into rewriting
CUT_WITHIN_S: Final = 30.0  # a follower may hold the cut up so long; it is tried again then


class StateFlush:
    """One per node; `run` and `run_erasures` are its tasks."""

    def __init__(self, node: JetStreamNode) -> None:
        self.wanted = asyncio.Event()
        self._node = node
        self._unflushed_bytes = 0
        self._one_at_a_time = asyncio.Lock()
        self._erased: dict[GroupId, Index] = {}
        self._erasure_wanted = asyncio.Event()
        self._mark = node.directory / "erasing"  # there while something erased is still on disk

    def written(self, size: int) -> None:
        """So many bytes of state were written without being flushed."""
        self._unflushed_bytes += size
        if self._unflushed_bytes > FLUSH_ABOVE_BYTES:
            self.wanted.set()

    async def run(self) -> None:
        """Now and then make the applied state durable, so that the log can be cut behind it."""
        while True:
            try:
                async with asyncio.timeout(FLUSH_EVERY_S):
                    await self.wanted.wait()
            except TimeoutError:
                pass  # the interval has passed: flush what there is
            self.wanted.clear()
            if self._node.host.trouble() is not None:
                continue
            try:
                await self._flush()
            except StoreFailed as error:
                self._node.host.store_failed(error)

    def start_over(self) -> None:
        """The store was opened anew (raft.Host, on_recovered): what was not flushed is gone, as
        after a crash, and the log brings it back. Streams in memory have lost nothing."""
        node = self._node
        kept = set(node.host.groups())
        for group, replica in list(node.replicas.items()):
            if GroupId(group) not in kept:
                replica.close()
                del node.replicas[group]
                node.block_cache.discard_group(group)
        node.meta_group.close()
        node.meta_group.load()
        if node.formed.is_set():
            node.join_groups()
        if self._mark.exists():
            self.erase_again()

    async def _flush(self) -> None:
        async with self._one_at_a_time:
            self._unflushed_bytes = 0
            marks = []
            for replica in [r for r in self._node.replicas.values() if r.dirty]:
                while replica.stream.work_ahead():  # noqa: ASYNC110 - a part per turn
                    await asyncio.sleep(0)
                if self._node.replicas.get(replica.group) is replica:
                    marks.append((replica.flushed, replica.checkpoint()))
                await asyncio.sleep(0)  # each is a turn of the loop
            meta = self._node.meta_group
            marks.append((meta.flushed, meta.written()))
            await asyncio.to_thread(self._node.store.flush_state)
            for flushed, index in marks:
                flushed(index)

    # -- secure erase ---------------------------------------------------------------------------

    def erased(self, replica: Replica) -> None:
        """A message was overwritten by the entry just applied."""
        if not self._erased:
            self._mark.touch()
        self._erased[replica.group] = Index(replica.stream.applied)
        self._erasure_wanted.set()

    def erase_again(self) -> None:
        """Which groups it was is not known any more."""
        for replica in self._node.replicas.values():
            self.erased(replica)

    async def run_erasures(self) -> None:
        if self._mark.exists():  # an earlier run did not come to it
            self.erase_again()
        while True:
            await self._erasure_wanted.wait()
            await asyncio.sleep(ERASE_AFTER_S)
            if self._node.host.trouble() is not None:
                continue
            began = time.monotonic()
            try:
                await self._expunge()
            except StoreFailed as error:
                self._node.host.store_failed(error)
            await asyncio.sleep(ERASE_SHARE * (time.monotonic() - began))

    async def _expunge(self) -> None:
        self._erasure_wanted.clear()
        erased, self._erased = self._erased, {}
        await self._flush()  # the rewritten blocks: from now on nobody needs the entries
        for group, index in erased.items():
            held = self._node.host.held(group)
            if held is not None:
                held.erase_upto = index
        cut = await eventually(lambda: self._are_cut(erased), timeout_s=CUT_WITHIN_S, every_s=0.1)
        await asyncio.to_thread(self._node.store.expunge)
        if not cut:
            logger.warning("a follower still needs log entries with erased messages")
            self._erased = {**erased, **self._erased}
            self._erasure_wanted.set()
        elif not self._erased:
            self._mark.unlink(missing_ok=True)

    def _are_cut(self, erased: dict[GroupId, Index]) -> bool:
        return not any(
            held is not None and held.log.first_index() <= index
            for held, index in ((self._node.host.held(g), index) for g, index in erased.items())
        )
