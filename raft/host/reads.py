"""Linearizable reads from the leader of one group: by a read barrier, or by its lease.

Owns: the callers that wait for a read barrier.
May not touch: the state machine, other groups.
Spec: Raft thesis 6.4. A barrier asks the followers whether we still lead, and returns once the
machine has applied what was committed at the time of the call (steps 3 and 4). With a lease
(6.4.1) the followers need not be asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from raft.core.raft_core import RaftCore
from raft.core.ready import ReadState
from raft.host.ticker import TickPace
from raft.types import Index, NodeId, NotLeader


class GroupReads:
    __slots__ = ("_core", "_last_context", "_waiting", "confirmed")

    def __init__(self, core: RaftCore) -> None:
        self._core = core
        self._waiting: dict[int, asyncio.Future[Index]] = {}  # by context, not confirmed yet
        # Not served yet: the machine has not applied everything that they need.
        self.confirmed: list[tuple[Index, asyncio.Future[Index]]] = []
        self._last_context = 0

    def are_current(self, pace: TickPace, now: float) -> bool:
        """Whether our machine has applied everything that was acknowledged, because no other leader
        can have been elected: we hold a lease, by ticks and by the clock, or we are the only voter.
        A sleeping group holds no lease: a read barrier wakes it, and the round of heartbeats that
        confirms the barrier begins one."""
        core = self._core
        age = core.lease_age()
        if age is None or not pace.within_lease(age, now):
            return core.leads_alone()
        core.use_lease()
        return True

    def begin(self) -> tuple[int, asyncio.Future[Index]]:
        """Ask the core for a read index. The future gets the applied index when the read may be
        served; call `end` with the context afterwards. Raises NotLeader."""
        self._last_context = context = self._last_context + 1
        future: asyncio.Future[Index] = asyncio.get_running_loop().create_future()
        self._core.read_index(context)
        self._waiting[context] = future
        return context, future

    def end(self, context: int) -> None:
        self._waiting.pop(context, None)

    def advance(self, reads: Sequence[ReadState], applied: Index) -> None:
        """The core has confirmed these reads, and the machine stands at `applied`."""
        for read in reads:
            future = self._waiting.pop(read.context, None)
            if future is not None:
                self.confirmed.append((read.index, future))
        if not self.confirmed:
            return
        waiting, self.confirmed = self.confirmed, []
        for needed, future in waiting:
            if needed > applied:
                self.confirmed.append((needed, future))
            elif not future.done():
                future.set_result(applied)

    def fail(self, leader: NodeId | None) -> None:
        """Fail the waiting reads: we no longer lead, so we cannot know what is committed."""
        futures = [*self._waiting.values(), *(future for _, future in self.confirmed)]
        self._waiting.clear()
        self.confirmed.clear()
        for future in futures:
            if not future.done():
                future.set_exception(NotLeader(leader))
