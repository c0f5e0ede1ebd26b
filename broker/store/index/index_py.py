"""The subject index: how many messages each subject has, and between which sequences.

Owns: one entry per stored subject, and the order needed for wildcard lookups. This twin is the
specification of _index.pyx.
May not touch: which messages are stored. `first` and `last` of an entry are only bounds; the store
makes them exact when it needs them.
Spec: NATS JetStream stream state (num_subjects, subjects), last sequence of a subject.

Appending a batch costs one step per distinct subject in it, however many subjects are stored."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

from broker.store.block.block_format import Block, Rows
from broker.subjects import has_wildcard, matcher

Stretch = tuple[int, int]  # a range of rows: first, last + 1


@final
@dataclass(slots=True, eq=False)
class SubjectEntry:
    """Invariant: every stored message of the subject is in [first, last]; count is exact.

    An entry is no longer valid after subjects were added or removed."""

    count: int
    first: int  # the first message, unless it was removed
    last: int  # the last message, unless it was removed
    # Sequence and size of every message as a flat list, oldest first; None if not known. With it
    # the oldest messages can be removed without reading a block. Messages at the front may have
    # been removed already. Change it only by assignment, or by the methods below.
    trail: array[int] | None = None

    def trail_grew(self, count: int, added: Sequence[int]) -> None:
        """`count` messages were added; `added` are their pairs, if all of them are known."""
        if self.count == count:
            self.trail = array("q")
        if self.trail is not None:
            if len(added) == 2 * count:
                self.trail.extend(added)
            else:
                self.trail = None

    def trail_shrank(self, count: int) -> None:
        """The oldest `count` messages were removed."""
        if self.trail is not None:
            del self.trail[: 2 * count]


@final
class SubjectIndex:
    """Entries by subject."""

    __slots__ = ("_entries", "floor")

    def __init__(self) -> None:
        self.floor = 0  # the first sequence of the stream; set by the store
        self._entries: dict[bytes, SubjectEntry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, subject: bytes) -> bool:
        return subject in self._entries

    def get(self, subject: bytes) -> SubjectEntry | None:
        return self._entries.get(subject)

    def added(self, subject: bytes, *, count: int, first: int, last: int) -> SubjectEntry:
        """`count` messages were appended to the stream."""
        entry = self._entries.get(subject)
        if entry is None:
            entry = self._entries[subject] = SubjectEntry(count, first, last)
        else:
            entry.count += count
            entry.last = last
        return entry

    def add_rows(self, block: Rows, *, first_seq: int = 0) -> None:
        """All rows of the block were appended, numbered from `first_seq`, or as in the block."""
        for subject, start, stop in block.subject_runs():
            low = first_seq + start if first_seq else block.seq(start)
            high = first_seq + stop - 1 if first_seq else block.seq(stop - 1)
            self.added(subject, count=stop - start, first=low, last=high)

    def trail_rows(
        self, block: Block, *, per_message: int, per_header: int, first_seq: int = 0
    ) -> None:
        """Add the rows of a block, numbered as in add_rows and already added there, to the trails.
        A subject that already existed without a trail does not get one."""
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
        """Drop all trails."""
        for entry in self._entries.values():
            entry.trail = None

    def trail_of(self, handle: SubjectEntry) -> array[int] | None:
        """Its trail, without messages removed at the front; None if the number of messages differs
        from `count`."""
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

    def remove_rows(
        self,
        rows: Rows,
        stretches: Iterable[Stretch],
        *,
        per_message: int,
        per_header: int,
        last_is_known: bool = False,
    ) -> int:
        """The rows in these ranges were removed. Returns their size, counted as in `trail_rows`.
        `last_is_known`: a subject with one message left has it at `last`, so `first` becomes it."""
        size = 0
        for begin, end in stretches:
            for row in range(begin, end):
                subject = rows.subject(row)
                self.removed(subject, 1)
                entry = self._entries.get(subject) if last_is_known else None
                if entry is not None and entry.count == 1:
                    entry.first = entry.last
                size += per_message + len(subject) + rows.row_size(row)
                size += per_header if rows.headers(row) else 0
        return size

    def clear(self) -> None:
        self._entries.clear()

    def counts(self) -> Iterator[tuple[bytes, int]]:
        return ((subject, entry.count) for subject, entry in self._entries.items())

    def matching(self, pattern: bytes) -> Iterator[bytes]:
        """Stored subjects that match, sorted. The index must not change during the iteration."""
        if not has_wildcard(pattern):
            yield from (pattern,) if pattern in self._entries else ()
            return
        yield from sorted(filter(matcher(pattern), self._entries))

    def matching_part(
        self, pattern: bytes, after: bytes, most: int
    ) -> tuple[list[bytes], bytes | None]:
        """Like `matching`, for the subjects that sort after `after`, of which at most `most` are
        compared. Also returns the last of those, from which to continue; None when there are no
        more. The index may change between two parts."""
        prefix = literal_prefix(pattern) if has_wildcard(pattern) else pattern
        later = sorted(s for s in self._entries if s > after and s.startswith(prefix))
        fits = matcher(pattern)
        found = [subject for subject in later[:most] if fits(subject)]
        return found, later[most - 1] if len(later) > most else None

    @property
    def nbytes(self) -> int:
        """Approximate memory of the table."""
        return sum(300 + len(subject) for subject in self._entries)


def literal_prefix(pattern: bytes) -> bytes:
    """The text before the first wildcard token, with its dot; every match starts with it."""
    kept = []
    for token in pattern.split(b"."):
        if token in (b"*", b">"):
            break
        kept.append(token)
    return b".".join([*kept, b""])
