"""The simulated flush thread: a flush takes virtual time, and covers what was written before it.

Owns: when a flush ends.
May not touch: what is flushed.
Spec: raft/store/flush_thread.py, whose place it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from chaos.sim.world.database import DatabaseFiles
from chaos.sim.world.node_loop import NodeLoop
from chaos.sim.world.virtual_time import WorldTime


class FlushedLog(Protocol):
    """The log store, as far as its flush thread uses it."""

    db: Any

    def flush(self) -> None: ...


class SimFlushThread:
    def __init__(  # noqa: PLR0917 - the first three are bound by the node
        self,
        world: WorldTime,
        files: DatabaseFiles,
        flush_ns: Callable[[], int],
        loop: NodeLoop,
        store: FlushedLog,
        flushed: Callable[[BaseException | None], None],
    ) -> None:
        self._world = world
        self._files = files
        self._flush_ns = flush_ns
        self._loop = loop
        self._store = store
        self._flushed = flushed

    def request(self) -> None:
        self._world.after(self._flush_ns(), self._end, self._files.written)

    def _end(self, covered: int) -> None:
        if self._loop.alive:
            self._loop.call_soon(self._finish, covered)

    def _finish(self, covered: int) -> None:
        error: BaseException | None = None
        database: Any = self._store.db
        database.flush_limit = covered
        try:
            self._store.flush()
        except Exception as raised:  # noqa: BLE001 - passed on, as the real thread does
            error = raised
        finally:
            database.flush_limit = None
        self._flushed(error)

    def stop(self) -> None:
        """Nothing runs."""
