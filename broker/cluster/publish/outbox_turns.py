"""Lets all outboxes with new publishes send together, once per turn of the loop.

Owns: which outboxes have something to send.
May not touch: what they send (outbox_shell.py), the rounds of Raft.
Spec: docs/decisions/0028-small-rounds.md. All proposals of a node in one turn form one Raft round,
in the same callback: a callback per outbox and another one for the round would cost one more turn
of the loop. docs/decisions/0035-one-record-for-many.md: when they send."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

Act = Callable[[], None]


def _call(act: Act) -> None:
    act()


def _is_elsewhere(_group: int) -> bool:
    return False


class OutboxTurns:
    """One per node. An outbox adds itself again after its turn. Outboxes of streams that have to
    wait for the disk of this node send when no flush is in flight: until then they collect more,
    because a batch costs about as much as several messages. Outboxes of other streams, for example
    those led elsewhere, do not depend on this disk and do not wait."""

    __slots__ = ("_due", "_hurried", "_patient", "_scheduled", "_together", "_waiting", "_waits")

    def __init__(
        self,
        together: Callable[[Act], None] = _call,
        waits: Callable[[int], bool] = _is_elsewhere,
    ) -> None:
        """`together` calls back when no flush is in flight; what the callback proposes forms one
        round. `waits` returns whether a group waits for the disk of this node."""
        self._together = together
        self._waits = waits
        self._due: deque[Act] = deque()
        self._patient: deque[Act] = deque()  # like _due, but they wait until no flush is in flight
        self._scheduled = False
        self._waiting = False  # `together` was called and has not called back yet
        self._hurried = False

    def add(self, group: int, send: Act) -> None:
        if self._waits(group):
            self._patient.append(send)
            if self._waiting:
                return
        else:
            self._due.append(send)
        if not self._scheduled:
            self._schedule()

    def hurry(self) -> None:
        """Much has been collected: send it in the next turn, even if a flush is in flight."""
        if self._waiting and not self._hurried:
            self._hurried = True
            asyncio.get_running_loop().call_soon(self._send_patient)

    def _schedule(self) -> None:
        self._scheduled = True
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        if self._due:
            self._send(self._due)
        if self._patient and not self._waiting:
            self._waiting = True
            self._together(self._send_patient)

    def _send_patient(self) -> None:
        self._waiting = self._hurried = False
        self._send(self._patient)

    def _send(self, due: deque[Act]) -> None:
        try:
            for _ in range(len(due)):
                due.popleft()()
        finally:  # one that raises is reported by the loop; the others still send
            if due and not self._scheduled:
                self._schedule()
