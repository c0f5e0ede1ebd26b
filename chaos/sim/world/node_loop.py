"""The event loop of one simulated node, on virtual time.

Owns: the callbacks that are ready, the node's clocks, pauses, and the node's end.
May not touch: sockets and threads; there are none. Blocking calls that the broker gives to a
thread run in one step, some virtual time later.
Spec: asyncio's event loop as far as the broker uses it: without context variables. A turn runs the
callbacks that were ready when it began, as asyncio does; the next turn comes a moment later, so
that nodes interleave."""

from __future__ import annotations

import asyncio
import contextvars
from asyncio.events import _set_running_loop
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVarTuple

from chaos.sim.world.virtual_time import EPOCH_NS, NS, US, CurrentClock, WorldTime

if TYPE_CHECKING:
    EventLoop = asyncio.BaseEventLoop  # its stub is not abstract
else:
    EventLoop = asyncio.AbstractEventLoop

Ts = TypeVarTuple("Ts")
_MILLION: Final = 1_000_000
_END_OF_SLEEP: Final = getattr(asyncio.futures, "_set_result_unless_cancelled")  # noqa: B009
_BUSY_TURNS: Final = 200  # after so many turns in a row, a turn takes longer
_BUSY_TURN_NS: Final = 500 * US


class SimHandle(asyncio.TimerHandle):
    """A callback that waits for its turn, at a third of the cost of asyncio's own handles: the
    broker uses no context variables, so there is no context to copy and to enter."""

    __slots__ = ("action", "arguments", "off")

    def __init__(
        self, action: Callable[..., object], arguments: tuple[Any, ...], when: float = 0.0
    ) -> None:
        self.action = action
        self.arguments = arguments
        self.off = False
        self._when = when

    def cancel(self) -> None:
        self.off = True

    def cancelled(self) -> bool:
        return self.off

    @property
    def name(self) -> str:
        """The same in every run."""
        return getattr(self.action, "__qualname__", type(self.action).__name__)

    def __repr__(self) -> str:
        return f"<SimHandle {self.name}{' cancelled' if self.off else ''}>"


class NodeLoop(EventLoop):
    """Ends with `kill`: nothing of it runs afterwards, not even `finally` blocks."""

    def __init__(
        self,
        name: str,
        world: WorldTime,
        current: CurrentClock,
        *,
        on_exception: Callable[[str, dict[str, Any]], None],
        blocking_ns: Callable[[], int],
        turn_ns: int = 20 * US,
    ) -> None:
        """`on_exception` gets what the loop would log. `blocking_ns` draws how long a call on
        another thread takes."""
        self.name = name
        self.alive = True
        self.paused = False
        self.turns = 0
        self.wall_offset_ns = 0
        self._drift_ppm = 0
        self._since_ns = self._clock_ns = world.now_ns  # when the drift changed, and our clock then
        self._world = world
        self._current = current
        self._on_exception = on_exception
        self._blocking_ns = blocking_ns
        self._turn_ns = turn_ns
        self._ready: deque[SimHandle] = deque()
        self._buried: list[SimHandle] = []
        self._turn_due = False
        self._idle_until_ns = 0
        self._busy_turns = 0

    # -- clocks

    def monotonic_ns(self) -> int:
        if not self._drift_ppm:
            return self._clock_ns + self._world.now_ns - self._since_ns
        elapsed_ns = self._world.now_ns - self._since_ns
        return self._clock_ns + elapsed_ns + elapsed_ns * self._drift_ppm // _MILLION

    def drift(self, ppm: int) -> None:
        """From now on the clocks of this node run too fast, or too slow if `ppm` is negative.
        Timers that are already set are not affected."""
        self._clock_ns = self.monotonic_ns()
        self._since_ns = self._world.now_ns
        self._drift_ppm = ppm

    def wall_ns(self) -> int:
        return EPOCH_NS + self.monotonic_ns() + self.wall_offset_ns

    def time(self) -> float:
        return self.monotonic_ns() / NS

    # -- life

    def pause(self) -> None:
        """Stop running, as after SIGSTOP: clocks continue, events wait."""
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self._wake()

    def kill(self) -> None:
        """Waiting callbacks are kept, not freed: freeing a coroutine runs its `finally` blocks."""
        self.alive = False
        self._buried.extend(self._ready)
        self._ready = deque()

    # -- turns

    def _wake(self) -> None:
        if not self._turn_due and self.alive:
            self._turn_due = True
            if self._idle_until_ns > self._world.now_ns:
                self._world.at(self._idle_until_ns, self._turn)
            else:
                self._world.next(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        if not self.alive or self.paused:
            return
        self.turns += 1
        ready = self._ready
        current = self._current
        if current.loop is not self:
            current.loop = self
            _set_running_loop(self)
        before, current.clock = current.clock, self
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.off:
                try:
                    handle.action(*handle.arguments)
                except Exception as error:  # noqa: BLE001 - as every event loop does
                    message = f"Exception in callback {handle.name}"
                    self.call_exception_handler({"message": message, "exception": error})
        current.clock = before
        if ready:
            self._busy_turns += 1
            turn_ns = self._turn_ns if self._busy_turns < _BUSY_TURNS else _BUSY_TURN_NS
            self._idle_until_ns = self._world.now_ns + turn_ns
            self._wake()
        else:
            self._busy_turns = 0
            self._idle_until_ns = self._world.now_ns + self._turn_ns

    def _fire(self, handle: SimHandle) -> None:
        if not self.alive:
            self._buried.append(handle)
        elif not handle.off:
            if handle.action is _END_OF_SLEEP and not self._ready:
                handle.action(*handle.arguments)  # wakes a task, which then has the first turn
            else:
                self._ready.append(handle)
                if not self._turn_due:
                    self._wake()

    # -- asyncio

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = SimHandle(callback, args)
        if self.alive:
            self._ready.append(handle)
            if not self._turn_due:
                self._wake()
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.monotonic_ns() / NS + delay, callback, *args)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = SimHandle(callback, args, when)
        # A nanosecond more than needed: no timer fires before its time because of rounding.
        delay_ns = int((when - self.monotonic_ns() / NS) * NS) + 1
        if self._drift_ppm:
            delay_ns = delay_ns * _MILLION // (_MILLION + self._drift_ppm) + 1
        world = self._world
        world.at(world.now_ns + delay_ns, self._fire, handle)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Any,
        *,
        name: object = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Any]:
        return asyncio.Task(
            coro, loop=self, name=None if name is None else str(name), context=context
        )

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """The call runs in one step, when its thread would have finished it."""
        future = self.create_future()
        self._world.after(self._blocking_ns(), self._finish, future, func, args)
        return future

    def _finish(
        self, future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        if not self.alive:
            return
        self.call_soon(self._call, future, func, args)

    def _call(
        self, future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        try:
            result = func(*args)
        except Exception as error:  # noqa: BLE001 - the awaiting code gets it
            if not future.cancelled():
                future.set_exception(error)
        else:
            if not future.cancelled():
                future.set_result(result)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.alive:
            self._on_exception(self.name, context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    # -- for the simulator itself

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Create a task from outside of the loop."""
        return self.create_task(work, name=name)
