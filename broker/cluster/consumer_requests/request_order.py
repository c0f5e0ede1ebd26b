"""Ordering: requests of one connection about one consumer are answered in order of arrival.

Owns: which request waits for which.
May not touch: what is requested.
A client may create, change and delete a consumer without waiting for the answers. A change waits
for all earlier requests, a read only for the last change: reads do not wait for each other.
Bound: WAIT_S. Without it, requests for a stream without a leader would be answered one timeout
after the other, and block those of other accounts for hours.
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
    """One per node. A line exists while one of its requests is being answered."""

    _lines: dict[Key, _Line] = field(default_factory=dict)

    def enter(self, key: Key, *, changes: bool) -> Place:
        """Must be called in order of arrival."""
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
        """The request has ended or timed out. Requests that wait for it then wait for `before`."""
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
                    await asyncio.shield(one)  # other requests wait for the same future
        except (asyncio.CancelledError, TimeoutError):
            self._order.leave(self._key, self._ended, self._before)
            raise

    async def __aexit__(self, *_: object) -> None:
        self._order.leave(self._key, self._ended)
