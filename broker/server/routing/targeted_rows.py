"""Rows of runs queued for a link, with the targets behind it (plain subscriptions, queue groups).

Owns: how rows are cut, so that each message crosses a link once and names all its targets.
May not touch: links, encodings.
Spec: NATS clustering and leaf nodes: one copy per link, with the names of the queue groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from broker.wire import PubRun


@dataclass(slots=True)
class TargetedRows:
    """Rows of a run for a link, and the targets behind it."""

    account: str
    run: PubRun
    start: int
    stop: int
    targets: list[bytes]  # queue groups; b"" means the plain subscriptions
    origin: str = ""  # the cluster of the leaf node that the rows came from

    def add_target(self, run: PubRun, start: int, stop: int, queue: bytes) -> bool:
        """False: these are other rows, or the target has them already."""
        if self.run is not run or self.start != start or self.stop != stop or queue in self.targets:
            return False
        self.targets.append(queue)
        return True


def pieces(queued: list[TargetedRows]) -> Iterator[TargetedRows]:
    """Cut the queue so that every row of a run is in one piece, with all its targets."""
    at = 0
    while at < len(queued):
        end = at + 1
        while end < len(queued) and queued[end].run is queued[at].run:
            end += 1
        yield from queued[at:end] if end == at + 1 else _cut(queued[at:end])
        at = end


def _cut(queued: list[TargetedRows]) -> Iterator[TargetedRows]:
    """A queue group may get slices of a run of which plain subscriptions get all rows. Cut at every
    boundary, so that a row with several targets crosses once and names them all."""
    account, run, origin = queued[0].account, queued[0].run, queued[0].origin
    edges = sorted({edge for item in queued for edge in (item.start, item.stop)})
    begins: dict[int, list[TargetedRows]] = {}
    for item in queued:
        begins.setdefault(item.start, []).append(item)
    active: list[TargetedRows] = []
    for start, stop in pairwise(edges):
        active = [item for item in active if item.stop > start] + begins.get(start, [])
        targets = [queue for item in active for queue in item.targets]
        # A target that is named twice for a row gets the row twice: it was published twice.
        while targets:
            once = list(dict.fromkeys(targets))
            yield TargetedRows(account, run, start, stop, once, origin)
            for queue in once:
                targets.remove(queue)
