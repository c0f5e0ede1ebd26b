"""Requests of one connection about one consumer are answered in the order in which they came.

Owns: who waits for whom.
May not touch: what is requested.
A client that does not wait for answers may create, change and delete a consumer in one go. Changes
wait for everything before them, reads for the last change: reads do not wait for each other.
Bound: WAIT_S. Without it, requests for a stream without a leader would be answered one timeout
after the other, and take the places of other accounts for hours.
Spec: nats-server handles the requests of a connection one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

WAIT_S: Final = 10.0  # for its turn; then the request fails
Key = tuple[int, str, str, str]  # connection, account, stream, consumer
Ended = asyncio.Future[None]


@dataclass(slots=True)
class _Line:
    change: Ended | None = None  # the last one
    reads: list[Ended] = field(default_factory=list)  # since then
    requests: int = 0  # that have not ended


@dataclass(slots=True)
class RequestOrder:
    """One per node. A line exists as long as one of its requests is being answered."""

    _lines: dict[Key, _Line] = field(default_factory=dict)

    def enter(self, key: Key, *, changes: bool) -> Place:
        """To be called in the order of arrival."""
        line = self._lines.setdefault(key, _Line())
        line.requests += 1
        ended: Ended = asyncio.get_running_loop().create_future()
        before = [] if line.change is None else [line.change]
        if changes:
            before = line.reads or before
            line.change, line.reads = ended, []
        else:
            line.reads = [one for one in line.reads if not one.done()]
            line.reads.append(ended)
        return Place(self, key, ended, [one for one in before if not one.done()])

    def leave(self, key: Key, ended: Ended, before: Sequence[Ended] = ()) -> None:
        """The request has ended, or it has given up; who waits for it waits for `before` then."""
        line = self._lines[key]
        line.requests -= 1
        if not line.requests:
            del self._lines[key]
        left = {one for one in before if not one.done()}

        def passed(one: Ended) -> None:
            left.discard(one)
            if not left:
                ended.set_result(None)

        for one in tuple(left):
            one.add_done_callback(passed)
        if not left:
            ended.set_result(None)

    def __len__(self) -> int:
        return len(self._lines)


@dataclass(slots=True)
class Place:
    """The place of one request in its line: `async with` waits for its turn, and raises
    TimeoutError."""

    _order: RequestOrder
    _key: Key
    _ended: Ended
    _before: list[Ended]

    async def __aenter__(self) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                for one in self._before:
                    await asyncio.shield(one)  # it is also somebody else's
        except (asyncio.CancelledError, TimeoutError):
            self._order.leave(self._key, self._ended, self._before)
            raise

    async def __aexit__(self, *_: object) -> None:
        self._order.leave(self._key, self._ended)
