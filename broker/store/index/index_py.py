"""The subjects of a stream: how many messages each has, and between which sequences.

Owns: one entry per subject that is stored now, and the order needed for wildcard questions. This
twin is the specification of _index.pyx.
May not touch: what is alive. What an entry says of `first` and `last` are bounds; the store
sharpens them.
Spec: JetStream sheet 2.3 (num_subjects, subjects), 3.2 (last sequence of a subject).

Cost: an appended batch touches each of its distinct subjects once, however many are stored."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

from broker.store.block.block_py import Block
from broker.subjects import has_wildcard, matcher


@final
@dataclass(slots=True, eq=False)
class SubjectEntry:
    """Invariant: every stored message of the subject lies in [first, last]; count is exact.

    Do not keep one while subjects are added or removed."""

    count: int
    first: int  # the first message, unless that one is gone by now
    last: int  # the last message, unless that one is gone by now
    # Sequence and size of every message, flat, oldest first; None when they are not known. With
    # it the oldest can be dropped without reading a block. Pairs at the front may be gone.
    # Change it only by setting it, or by the methods below.
    trail: array[int] | None = None

    def trail_grew(self, count: int, added: Sequence[int]) -> None:
        """`count` messages of the entry are new; `added` are their pairs, if all are known."""
        if self.count == count:
            self.trail = array("q")
        if self.trail is not None:
            if len(added) == 2 * count:
                self.trail.extend(added)
            else:
                self.trail = None

    def trail_shrank(self, count: int) -> None:
        """The oldest `count` messages are gone."""
        if self.trail is not None:
            del self.trail[: 2 * count]


@final
class SubjectIndex:
    """Entries by subject."""

    __slots__ = ("_entries", "floor")

    def __init__(self) -> None:
        self.floor = 0  # no message is stored below; set by the store
        self._entries: dict[bytes, SubjectEntry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, subject: bytes) -> bool:
        return subject in self._entries

    def get(self, subject: bytes) -> SubjectEntry | None:
        return self._entries.get(subject)

    def added(self, subject: bytes, *, count: int, first: int, last: int) -> SubjectEntry:
        """`count` messages came to the end of the stream."""
        entry = self._entries.get(subject)
        if entry is None:
            entry = self._entries[subject] = SubjectEntry(count, first, last)
        else:
            entry.count += count
            entry.last = last
        return entry

    def add_rows(self, block: Block, *, first_seq: int = 0) -> None:
        """All rows of the block came, numbered from `first_seq`, or as they are numbered."""
        for subject, start, stop in block.subject_runs():
            low = first_seq + start if first_seq else block.seq(start)
            high = first_seq + stop - 1 if first_seq else block.seq(stop - 1)
            self.added(subject, count=stop - start, first=low, last=high)

    def trail_rows(
        self, block: Block, *, per_message: int, per_header: int, first_seq: int = 0
    ) -> None:
        """The rows of the block, added before, with their sizes; numbered as in add_rows. A
        subject that was there before without a trail stays without."""
        for subject, start, stop in block.subject_runs():
            entry = self._entries.get(subject)
            low = first_seq + start if first_seq else block.seq(start)
            if entry is None or (entry.trail is None and entry.first != low):
                continue
            trail = entry.trail = array("q") if entry.trail is None else entry.trail
            for row in range(start, stop):
                size = per_message + len(subject) + block.row_size(row)
                size += per_header if block.headers(row) else 0
                trail.extend((first_seq + row if first_seq else block.seq(row), size))

    def forget_trails(self) -> None:
        """Trails are not kept from now on."""
        for entry in self._entries.values():
            entry.trail = None

    def trail_of(self, handle: SubjectEntry) -> array[int] | None:
        """Its trail without what left at the front; None when it does not add up."""
        trail = handle.trail
        if trail is None:
            return None
        gone = 0
        while gone < len(trail) and trail[gone] < self.floor:
            gone += 2
        del trail[:gone]
        if len(trail) != 2 * handle.count:
            handle.trail = None
        return None if handle.trail is None else handle.trail[:]

    def removed(self, subject: bytes, count: int) -> None:
        entry = self._entries[subject]
        assert entry.count >= count, f"subject {subject!r} has lost more messages than it had"
        entry.count -= count
        if entry.count == 0:
            del self._entries[subject]

    def clear(self) -> None:
        self._entries.clear()

    def counts(self) -> Iterator[tuple[bytes, int]]:
        return ((subject, entry.count) for subject, entry in self._entries.items())

    def matching(self, pattern: bytes) -> Iterator[bytes]:
        """Stored subjects under the pattern, sorted. The stream must not change meanwhile."""
        if not has_wildcard(pattern):
            yield from (pattern,) if pattern in self._entries else ()
            return
        yield from sorted(filter(matcher(pattern), self._entries))

    @property
    def nbytes(self) -> int:
        """Memory of the table, roughly."""
        return sum(300 + len(subject) for subject in self._entries)


def literal_prefix(pattern: bytes) -> bytes:
    """The text before the first wildcard token, with its dot: all matches start with it."""
    kept = []
    for token in pattern.split(b"."):
        if token in (b"*", b">"):
            break
        kept.append(token)
    return b".".join([*kept, b""])
