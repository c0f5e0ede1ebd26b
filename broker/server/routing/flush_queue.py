"""The connections that have something to send, flushed at the end of a turn of the event loop.

Owns: which connections are due, and how many of an account are flushed in one turn.
May not touch: what is sent (broker/server/client/outbound.py).
A write to a socket takes 10-40 us. A message for 500 subscribers would hold the loop for 10 ms
while it is written, so the connections of an account beyond the bound wait for the next turn; what
arrives for them meanwhile goes out in the same write. Connections of other accounts do not wait."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

from broker.accounts.unsent_bytes import UnsentBytes

FLUSHES_MAX: Final = 16  # of one account in a turn of the loop


class FlushedConnection(Protocol):
    @property
    def unsent(self) -> UnsentBytes: ...  # identifies the account

    def flush_in_turn(self) -> None: ...


class FlushQueue:
    """One per server. A connection is queued at most once; after a flush it can be added again."""

    __slots__ = ("_due", "_scheduled")

    def __init__(self) -> None:
        self._due: deque[FlushedConnection] = deque()
        self._scheduled = False

    def add(self, connection: FlushedConnection) -> None:
        self._due.append(connection)
        if not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._scheduled = True
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        due = self._due
        flushed: dict[UnsentBytes, int] = {}
        try:
            for _ in range(len(due)):
                connection = due.popleft()
                count = flushed.get(connection.unsent, 0)
                if count < FLUSHES_MAX:
                    flushed[connection.unsent] = count + 1
                    connection.flush_in_turn()
                else:
                    due.append(connection)
        finally:  # a flush that raises is reported by the loop; the others still happen
            if due and not self._scheduled:
                self._schedule()
