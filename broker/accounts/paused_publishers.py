"""Connections that are not read because their account has too much under way.

Owns: which publishers wait, and how many of them are read again in one turn of the event loop.
May not touch: what they wait for; the owner says when there is room again.
A socket that has waited is full: one read of it takes a quarter of a megabyte. Three hundred of
them, read in the same turn, held the loop for 100 ms and 150 MB more than the account may have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from broker.subjects import PublishingConnection

RESUMED_PER_TURN: Final = 8


class PausedPublishers:
    """First come, first served. Each connection is paused once."""

    __slots__ = ("_due", "_has_room", "_waiting")

    def __init__(self, has_room: Callable[[], bool]) -> None:
        self._has_room = has_room
        self._waiting: dict[PublishingConnection, None] = {}
        self._due = False  # the next ones are looked at in the next turn

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def pause(self, publisher: PublishingConnection) -> None:
        if publisher not in self._waiting:
            self._waiting[publisher] = None
            publisher.pause_reading()

    def resume(self) -> None:
        """Read from the first ones again, and from the others in later turns, while there is
        room."""
        if not self._due:
            self._some()

    def _some(self) -> None:
        self._due = False
        waiting = self._waiting
        for _ in range(min(RESUMED_PER_TURN, len(waiting))):
            if not self._has_room():
                return
            publisher = next(iter(waiting))
            del waiting[publisher]
            publisher.resume_reading()
        if waiting:
            self._due = True
            asyncio.get_running_loop().call_soon(self._some)
