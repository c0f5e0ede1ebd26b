"""Fair queue: work that used up its time slice waits until the other work has had its own.

Owns: one queue for the whole server; each turn of the event loop runs about one time slice of it.
May not touch: what the work is; it is a callback, or a generator of steps.
CPU time is shared between accounts first, then between the connections of an account: the one that
has used the least runs next. So an account with 300 busy clients gets no more of the loop than one
with a single client, and no work holds the loop for longer than a slice.
An account that has used little in this turn of the loop does not have to queue (`exhausted`): a
request of a quiet client is answered as soon as it is read.
Spec: docs/ARCHITECTURE.md, "Invariants": nothing blocks the event loop."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from heapq import heappop, heappush
from typing import Generic, Protocol, TypeVar

from broker.subjects import Steps

T = TypeVar("T")

# A publish that waits for its ack needs four or five turns of the loop, so they have to be short.
TURN_S = 0.002  # time slice of a client or a stream, and of the queue in one turn of the loop
DIRECT_S = 0.001  # what an account may use per turn of the loop before its work has to queue
ALONE_S = 0.004  # the same, while no other account has work, or has had some recently
RECENTLY_S = 0.25
LITTLE_S = 0.0002  # less than this is not worth a callback that resets the counter after the turn
STEPS_S = 0.0005  # work in steps yields to the next in the queue after this time
IDLE_KEPT = 1024  # accounts or connections without waiting work whose use is remembered

Act = Callable[[], None]


class _Lane(Generic[T]):
    """Waiting work by owner. `used_s` is the CPU time of each owner, from which the next one is
    chosen."""

    __slots__ = ("_floor_s", "_heap", "_number", "used_s", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[Hashable, T] = {}
        self.used_s: dict[Hashable, float] = {}
        self._heap: list[tuple[float, int, Hashable]] = []
        self._number = 0
        self._floor_s = 0.0  # `used_s` of the owner served last; a new owner starts there, not at 0

    def enter(self, owner: Hashable, waiting: T) -> None:
        self.waiting[owner] = waiting
        self._push(owner)

    def _push(self, owner: Hashable) -> None:
        used_s = max(self.used_s.get(owner, 0.0), self._floor_s)
        self.used_s[owner] = used_s
        self._number += 1
        heappush(self._heap, (used_s, self._number, owner))

    def first(self) -> tuple[Hashable, T]:
        """The owner that has used the least. The caller must `charge` it afterwards."""
        used_s, _, owner = heappop(self._heap)
        self._floor_s = used_s
        return owner, self.waiting[owner]

    def charge(self, owner: Hashable, used_s: float, *, more: bool) -> None:
        self.used_s[owner] += used_s
        if more:
            self._push(owner)
            return
        del self.waiting[owner]
        if len(self.used_s) > IDLE_KEPT:
            self.used_s = {name: self.used_s[name] for name in self.waiting}


class FairQueue:
    """FIFO within a connection. Each callback is called once."""

    __slots__ = (
        "_accounts", "_count", "_direct_s", "_due", "_forgetting", "_latest", "_latest_since",
    )  # fmt: skip

    def __init__(self) -> None:
        self._accounts: _Lane[_Lane[deque[Act]]] = _Lane()
        self._count = 0
        self._due = False
        self._direct_s: dict[Hashable, float] = {}  # used in this turn without queueing
        self._forgetting = False  # `_forget` is scheduled for the end of this turn
        self._latest: Hashable = None  # the account that was served last without queueing
        self._latest_since = -RECENTLY_S  # served alone since then

    def wait(self, act: Act, account: Hashable = None, connection: Hashable = None) -> None:
        """Call `act` in a later turn of the event loop."""
        lane = self._accounts.waiting.get(account)
        if lane is None:
            lane = _Lane()
            self._accounts.enter(account, lane)
        queue = lane.waiting.get(connection)
        if queue is None:
            lane.enter(connection, deque([act]))
        else:
            queue.append(act)
        self._count += 1
        self._schedule()

    def exhausted(self, account: Hashable) -> bool:
        """Whether the account has used its share of this turn; its work should then wait()."""
        used_s = self._direct_s.get(account, 0.0)
        return used_s > DIRECT_S and (used_s > ALONE_S or self._has_others(account))

    def _has_others(self, account: Hashable) -> bool:
        waiting = self._accounts.waiting
        if len(self._direct_s) > 1 or len(waiting) > (account in waiting):
            return True
        return time.perf_counter() - self._latest_since < RECENTLY_S

    def used(self, account: Hashable, used_s: float) -> None:
        """Count CPU time that the account used without queueing."""
        if account != self._latest:
            if self._latest is not None:
                self._latest_since = time.perf_counter()
            self._latest = account
        used_s += self._direct_s.get(account, 0.0)
        self._direct_s[account] = used_s
        if used_s > LITTLE_S and not self._forgetting:
            self._forgetting = True
            asyncio.get_running_loop().call_soon(self._forget)

    def _forget(self) -> None:
        self._forgetting = False
        self._direct_s.clear()

    async def run(
        self, steps: Steps[T], account: Hashable = None, connection: Hashable = None
    ) -> T:
        """Carry out the steps, some per turn; the first ones now, unless the account has used its
        share. Raises what they raise. Cancellation closes the generator."""
        if not self.exhausted(account):
            began = time.perf_counter()
            try:
                done, result = some_steps(steps)
            finally:
                self.used(account, time.perf_counter() - began)
            if done:
                return result  # type: ignore[return-value]
        ended: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._go_on(steps, ended, account, connection)
        try:
            return await ended
        finally:
            steps.close()
            # An exception refers to this frame. If the frame referred to the future, that would be
            # a reference cycle, and a flood of refused requests would keep their bodies in memory
            # until the next garbage collection.
            del ended

    def _go_on(
        self, steps: Steps[T], ended: asyncio.Future[T], account: Hashable, connection: Hashable
    ) -> None:
        self.wait(partial(self._some_more, steps, ended, account, connection), account, connection)

    def _some_more(
        self, steps: Steps[T], ended: asyncio.Future[T], account: Hashable, connection: Hashable
    ) -> None:
        if ended.done():
            return
        try:
            done, result = some_steps(steps)
        except Exception as problem:  # noqa: BLE001 - raised in the task that waits
            ended.set_exception(problem)
            del ended  # avoids a reference cycle, see `run`
            return
        if done:
            ended.set_result(result)  # type: ignore[arg-type]
        else:
            self._go_on(steps, ended, account, connection)

    def _schedule(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """Run what was waiting when the turn began, within one time slice."""
        self._due = False
        began = time.perf_counter()
        deadline = began + TURN_S
        try:
            for _ in range(self._count):
                began = self._next(began)
                if began > deadline:
                    break
        finally:  # a callback that raises is reported by the loop; the others still run
            if self._accounts.waiting:
                self._schedule()

    def _next(self, began: float) -> float:
        account, lane = self._accounts.first()
        connection, queue = lane.first()
        self._count -= 1
        ended = began
        try:
            queue.popleft()()  # no local variable: a traceback would keep it alive, see `run`
        finally:
            ended = time.perf_counter()
            used_s = ended - began
            lane.charge(connection, used_s, more=bool(queue))
            self._accounts.charge(account, used_s, more=bool(lane.waiting))
        return ended


class Turns(Protocol):
    """The fair queue, as work in steps sees it."""

    async def run(
        self, steps: Steps[T], account: Hashable = None, connection: Hashable = None
    ) -> T: ...


def some_steps(steps: Steps[T]) -> tuple[bool, T | None]:
    """Carry out steps for up to STEPS_S. Returns whether they have ended, and the result."""
    deadline = time.perf_counter() + STEPS_S
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return True, end.value
        if time.perf_counter() > deadline:
            return False, None
