"""The outboxes with new publishes send together, once per turn of the loop.

Owns: which outboxes have something to send.
May not touch: what they send (outbox_shell.py), the rounds of Raft.
Spec: docs/decisions/0028-small-rounds.md. What the outboxes of a node propose in a turn is one
round of Raft, in the same callback: a callback per outbox and another one for the round cost one
more turn of the loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

Act = Callable[[], None]


def _call(act: Act) -> None:
    act()


class OutboxTurns:
    """One per node. An outbox adds itself again after its turn."""

    __slots__ = ("_due", "_scheduled", "_together")

    def __init__(self, together: Callable[[Act], None] = _call) -> None:
        """`together` calls back at once; what is proposed meanwhile is one round."""
        self._together = together
        self._due: deque[Act] = deque()
        self._scheduled = False

    def add(self, send: Act) -> None:
        self._due.append(send)
        if not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._scheduled = True
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        self._together(self._send)

    def _send(self) -> None:
        due = self._due
        try:
            for _ in range(len(due)):
                due.popleft()()
        finally:  # one that raises is reported by the loop; the others still send
            if due and not self._scheduled:
                self._schedule()
