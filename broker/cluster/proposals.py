"""Proposals of this node that wait to be applied.

Owns: the futures of entries this node has proposed, by log index.
May not touch: what the entries mean, or how many there are: the host bounds how much is proposed
and not applied.
A proposal is answered when the entry at its index is applied: with its result if it is the same
entry (same term), with LostLeadership if another leader's entry took the index. Until then its
outcome is unknown, and no answer is given."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from raft import Index, Term


class LostLeadership(Exception):
    """Definite: another leader's entry took the index of this one; it will not be applied."""


@dataclass(slots=True)
class Proposals:
    _futures: dict[Index, tuple[Term, asyncio.Future[object]]] = field(default_factory=dict)

    def add(self, term: Term, index: Index) -> asyncio.Future[object]:
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        previous = self._futures.get(index)
        if previous is not None and not previous[1].done():
            previous[1].set_exception(LostLeadership())
        self._futures[index] = (term, future)
        return future

    def applied(self, term: Term, index: Index, result: object) -> None:
        waiting = self._futures.pop(index, None)
        if waiting is None or waiting[1].done():
            return
        if waiting[0] == term:
            waiting[1].set_result(result)
        else:
            waiting[1].set_exception(LostLeadership())

    def passed(self, index: Index) -> None:
        """Everything up to `index` is applied, and our own entries up to it were reported. Fail the
        remaining proposals: their index was taken by another leader's first entry or by a publish,
        which are not reported here."""
        for lost in [i for i in self._futures if i <= index] if self._futures else ():
            _, future = self._futures.pop(lost)
            if not future.done():
                future.set_exception(LostLeadership())

    def __len__(self) -> int:
        return len(self._futures)

    def cancel(self) -> None:
        """The group is closed: cancel everything that still waits."""
        for _, future in self._futures.values():
            future.cancel()
        self._futures.clear()
