"""Virtual time: one queue of events, and the clocks that simulated nodes read.

Owns: virtual time, the order of events, and the replacement of the standard library's clocks and
random sources while a seed runs.
May not touch: what an event does.
Spec: everything follows from the seed. Nodes read clocks and random numbers through the modules
`time`, `random`, `secrets` and `os`; tests/tidy checks that no module binds them by another
name."""

from __future__ import annotations

import os
import random
import secrets
import time
from asyncio import AbstractEventLoop
from asyncio.events import _set_running_loop
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from random import Random
from typing import Any, Final, Protocol

NS: Final = 1_000_000_000
MS: Final = 1_000_000
US: Final = 1_000
EPOCH_NS: Final = 1_800_000_000 * NS  # the wall time at which every run begins


_Event = tuple[int, int, Callable[..., None], tuple[Any, ...]]  # when, number, what


class NodeClock(Protocol):
    """The clocks of one machine."""

    def monotonic_ns(self) -> int: ...

    def wall_ns(self) -> int: ...


class WorldTime:
    """The queue of events. `now_ns` never goes back; events of one moment keep their order."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.steps = 0
        self._events: list[_Event] = []
        self._next: _Event | None = None  # every second event bypasses the queue
        self._number = 0

    def at(self, when_ns: int, action: Callable[..., None], *arguments: Any) -> None:
        self._number = number = self._number + 1
        if when_ns < self.now_ns:  # noqa: PLR1730 - max costs three times as much
            when_ns = self.now_ns
        heappush(self._events, (when_ns, number, action, arguments))

    def after(self, delay_ns: int, action: Callable[..., None], *arguments: Any) -> None:
        self._number = number = self._number + 1
        heappush(self._events, (self.now_ns + delay_ns, number, action, arguments))

    def next(self, action: Callable[[], None]) -> None:
        """Run `action` now, after the other events of this time."""
        self._number = number = self._number + 1
        event = (self.now_ns, number, action, ())
        if self._next is None:
            self._next = event
        else:
            heappush(self._events, event)

    def run_until(self, end_ns: int, done: Callable[[], bool] | None = None) -> bool:
        """Run events until the time is reached or `done` is true. Returns whether it is done.
        Actions that an event scheduled with `next` count as part of it."""
        events = self._events
        while True:
            following = self._next
            if following is not None:
                self._next = None
                if not events or events[0][0] > self.now_ns:
                    self.steps += 1
                    following[2]()
                    continue
                heappush(events, following)
            if not events or events[0][0] > end_ns:
                break
            if done is not None and done():
                return True
            self.now_ns, _, action, arguments = heappop(events)
            self.steps += 1
            action(*arguments)
        if done is not None and done():
            return True
        self.now_ns = max(self.now_ns, end_ns)
        return False


class WorldClock:
    """The clock outside of all nodes: virtual time itself."""

    def __init__(self, world: WorldTime) -> None:
        self._world = world

    def monotonic_ns(self) -> int:
        return self._world.now_ns

    def wall_ns(self) -> int:
        return EPOCH_NS + self._world.now_ns


class CurrentClock:
    """The node whose clocks are read now. The loop of a node sets it while the node runs. `loop` is
    what asyncio regards as the running loop: the last one that had a turn."""

    __slots__ = ("clock", "loop")

    def __init__(self, clock: NodeClock) -> None:
        self.clock = clock
        self.loop: AbstractEventLoop | None = None

    def monotonic(self) -> float:
        return self.clock.monotonic_ns() / NS

    def monotonic_ns(self) -> int:
        return self.clock.monotonic_ns()

    def time(self) -> float:
        return self.clock.wall_ns() / NS

    def time_ns(self) -> int:
        return self.clock.wall_ns()


@contextmanager
def simulated_clocks(current: CurrentClock, rng: Random) -> Iterator[None]:
    """Inside this context, `time`, `random`, `secrets` and `os.urandom` are simulated. Modules of
    the standard library that bound a function at import keep the real one."""
    state = random.getstate()
    random.seed(rng.getrandbits(64))
    replaced: list[tuple[object, str, object]] = []

    def replace(module: object, name: str, function: object) -> None:
        replaced.append((module, name, getattr(module, name)))
        setattr(module, name, function)

    replace(time, "monotonic", current.monotonic)
    replace(time, "monotonic_ns", current.monotonic_ns)
    replace(time, "clock_gettime_ns", lambda _clock: current.monotonic_ns())  # boot time
    replace(time, "perf_counter", current.monotonic)
    replace(time, "time", current.time)
    replace(time, "time_ns", current.time_ns)
    replace(secrets, "token_bytes", lambda count=32: rng.randbytes(count))
    replace(secrets, "token_hex", lambda count=32: rng.randbytes(count).hex())
    replace(secrets, "randbits", rng.getrandbits)
    replace(os, "urandom", rng.randbytes)
    try:
        yield
    finally:
        _set_running_loop(None)
        for module, name, function in reversed(replaced):
            setattr(module, name, function)
        random.setstate(state)
