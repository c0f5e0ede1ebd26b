"""The simulated flush thread: a flush takes virtual time and covers what is written until it ends.

Owns: when a flush ends.
May not touch: what is flushed.
Spec: raft/store/flush_thread.py, which it replaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from chaos.sim.world.node_loop import NodeLoop
from chaos.sim.world.virtual_time import WorldTime


class FlushedLog(Protocol):
    """The log store, as far as its flush thread uses it."""

    def flush(self) -> None: ...


class SimFlushThread:
    def __init__(
        self,
        world: WorldTime,
        flush_ns: Callable[[], int],
        loop: NodeLoop,
        store: FlushedLog,
        flushed: Callable[[BaseException | None], None],
    ) -> None:
        self._world = world
        self._flush_ns = flush_ns
        self._loop = loop
        self._store = store
        self._flushed = flushed

    def request(self) -> None:
        self._world.after(self._flush_ns(), self._end)

    def _end(self) -> None:
        if self._loop.alive:
            self._loop.call_soon(self._finish)

    def _finish(self) -> None:
        error: BaseException | None = None
        try:
            self._store.flush()
        except Exception as raised:  # noqa: BLE001 - passed on, as the real thread does
            error = raised
        self._flushed(error)

    def stop(self) -> None:
        """Nothing runs."""
