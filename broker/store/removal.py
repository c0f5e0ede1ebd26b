"""Removing messages from a store: one, many, everything below a sequence, or all that match.

Owns: the bookkeeping of a removal (segments, index, counters, the first sequence) and the journal
of removed ranges.
May not touch: the reasons for a removal.
Spec: NATS JetStream stream state: first_seq is the sequence of a stored message, or last_seq + 1. A
segment without stored rows is dropped."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

from pyroaring import BitMap64

from broker.store.block.codec import Block, Rows
from broker.store.block.columns import Sizing, blanked
from broker.store.index import SubjectEntry, SubjectIndex
from broker.store.index.subject_filter import SubjectFilter
from broker.store.oldest_rows import (
    FEW_STRETCHES,
    SUBJECTS_PER_STEP,
    OldestRows,
    Stretch,
    find_oldest,
    first_rows,
    note_range,
    stored_of,
)
from broker.store.search import live_stretches, ranges, row_at, without_deleted
from broker.store.segments import Segment, Segments, View
from broker.subjects import Steps, finish

_EVERYTHING = SubjectFilter(())
_FEW_KEPT = 8  # less than this part of the messages is left


@dataclass(frozen=True, slots=True)
class PurgePart:
    """The result of one part of a purge, and the arguments of the next one."""

    count: int
    next_seq: int  # 0: this was the last part
    bound: int  # messages from here on are kept
    left: int  # upper bound of the matching messages that remain


class ShrinkingStore(Protocol):
    """What a removal reads and changes of a MessageStore."""

    messages: int
    bytes: int

    @property
    def last_seq(self) -> int: ...
    @property
    def trail_max(self) -> int: ...
    @property
    def segments(self) -> Segments: ...
    @property
    def index(self) -> SubjectIndex: ...
    @property
    def sizing(self) -> Sizing: ...
    def rows(self, seq: int, /) -> tuple[Rows, int] | None: ...
    def has(self, seq: int, /) -> bool: ...


class Removal:
    """The half of a MessageStore that removes messages."""

    __slots__ = ("journal", "store", "tracking")

    def __init__(self, store: ShrinkingStore) -> None:
        self.store = store
        self.tracking = False
        self.journal: list[tuple[int, int]] = []

    def one(self, seq: int) -> bool:
        if not self._take_one(seq):
            return False
        self._settle_floor()
        return True

    def _take_one(self, seq: int) -> bool:
        found = self.store.rows(seq)
        if found is None:
            return False
        segments = self.store.segments
        i = found[1]
        self._take_rows(segments.all[segments.at(seq)], [(i, i + 1)])
        return True

    def erase(self, seq: int) -> bool:
        """Remove the message, and overwrite its headers and data in its block."""
        found, segments = self.store.rows(seq), self.store.segments
        if found is None:
            return False
        segment = segments.all[segments.at(seq)]
        rows, i = found
        if not isinstance(rows, Block):
            rows = Block(segments.builder.build(seal=False), verify=False)
        self.one(seq)
        if segment.live:
            segments.replace_rows(segment, blanked(rows, i))
        return True

    def many(self, seqs: Iterable[int]) -> int:
        """Remove those of the ascending sequences that are stored; adjacent ones in one step."""
        if isinstance(seqs, list | range) and _is_long_run(seqs):
            return self.matching(_EVERYTHING, seqs[-1] + 1, start=seqs[0])
        store, segments = self.store, self.store.segments
        messages, floor = store.messages, segments.floor
        segment: Segment | None = None
        stretches: list[Stretch] = []
        for seq in seqs:
            if seq < floor:
                continue
            if segment is None or seq > segment.last_seq:
                if segment is not None:
                    self._take_rows(segment, stretches)
                    segment, stretches = None, []
                position = segments.at(seq)
                if position < 0 or seq > segments.all[position].last_seq:
                    continue
                segment = segments.all[position]
            row = self._stored_row(segment, seq)
            if row >= 0 and stretches and stretches[-1][1] == row:
                stretches[-1] = (stretches[-1][0], row + 1)
            elif row >= 0:
                stretches.append((row, row + 1))
        if segment is not None:
            self._take_rows(segment, stretches)
        self._settle_floor()
        return messages - store.messages

    def _stored_row(self, segment: Segment, seq: int) -> int:
        """The row of a sequence in the segment, -1 if it is not stored."""
        if segment.deleted is not None and seq in segment.deleted:
            return -1
        if segment.contiguous:
            return seq - segment.first_seq
        return self.store.segments.view(segment).rows.index_of(seq)

    def before(self, bound: int) -> int:
        """Remove everything below `bound`; whole segments are dropped without reading them."""
        store, segments = self.store, self.store.segments
        floor, messages = segments.floor, store.messages
        if bound <= floor:
            return 0
        if bound > store.last_seq:
            store.index.clear()
            segments.clear()
            store.messages = store.bytes = 0
        else:
            whole = max(segments.at(bound), 0)  # the segments before that one are below the bound
            whole += segments.all[whole].last_seq < bound
            kept = sum([segment.live for segment in segments.all[whole:]])
            few = not store.trail_max and _FEW_KEPT * kept < store.messages
            for segment in segments.all[:whole]:
                if not few:
                    self._forget_segment(segment)
                store.messages -= segment.live
                store.bytes -= segment.live_size
            segments.discard_front(whole)
            if few:
                self._index_again()
            if segments.all and segments.all[0].first_seq < bound:
                segment = segments.all[0]
                stretches = list(
                    live_stretches(segments, segment, _EVERYTHING, start=floor, stop=bound)
                )
                self._take_rows(segment, stretches, mark=False)
        if self.tracking:
            self.journal.append((floor, bound - 1))
        self.set_floor(bound)
        self._settle_floor()
        return messages - store.messages

    def matching(self, wanted: SubjectFilter, bound: int, *, start: int = 0) -> int:
        """Remove every match in [start, bound). For a pattern, blocks are not tested for matches
        beforehand: with the many matches expected, the test takes as long as the search."""
        store, segments = self.store, self.store.segments
        messages = store.messages
        for segment in list(takewhile(lambda one: one.first_seq < bound, segments.from_seq(start))):
            if not wanted.literals or segments.may_hold(segment, wanted):
                found = live_stretches(segments, segment, wanted, start=start, stop=bound)
                self._take_rows(segment, list(found))
        self._settle_floor()
        return messages - store.messages

    def oldest_of(self, subject: bytes, entry: SubjectEntry, count: int) -> None:
        """Remove the `count` oldest messages of the subject."""
        if entry.count == 1 and self.store.has(entry.last):
            entry.first = entry.last
        trail = self.store.index.trail_of(entry)
        if trail is not None:
            rest = len(trail) > 2 * count
            self._oldest_by_trail(subject, trail, count)
            if rest:
                entry.trail_shrank(count)
                entry.first = trail[2 * count]
        else:
            if count == 1 and self.store.has(entry.first):
                self._take_one(entry.first)
                count, left = 0, self.store.index.get(subject)
            else:
                left = self._search_oldest(subject, entry, count)
            if left is not None and self.store.has(left.last) and left.count == 1:
                left.first = left.last
            if left is not None and left.count <= self.store.trail_max:
                left.trail = self._trail(subject, left)
        self._settle_floor()

    def _search_oldest(
        self, subject: bytes, entry: SubjectEntry, count: int
    ) -> SubjectEntry | None:
        """Remove the oldest, block by block. Returns the entry of what is left."""
        left: SubjectEntry | None = entry
        start = 0
        while left is not None and count > 0:
            segment, stretches = self._oldest_stretches(subject, left, count, start=start)
            start = segment.last_seq + 1  # if some are missing, this block has no more of them
            newest = self.store.segments.view(segment).rows.seq(stretches[-1][1] - 1)
            count -= self._take_rows(segment, stretches)
            left = self.store.index.get(subject)
            if left is not None:
                left.first = newest  # removed, but a better lower bound than before
        return left

    def oldest_of_many(self, excess: dict[bytes, int]) -> None:
        """Remove the given number of oldest messages per subject, in one pass over the blocks."""
        self.planned(finish(self.plan(excess)))

    def plan(self, excess: dict[bytes, int]) -> Steps[OldestRows]:
        """The search of `oldest_of_many`, in steps. Empties the dict."""
        store = self.store
        for at, subject in enumerate(excess, 1):
            entry = store.index.get(subject)
            alone = entry is not None and entry.count == excess[subject] + 1
            if alone and entry is not None and not store.has(entry.last):
                entry.last = self.search_down(subject, entry)
            if at % SUBJECTS_PER_STEP == 0:
                yield
        return (yield from find_oldest(store.segments, excess, tracking=self.tracking))

    def planned(self, plan: OldestRows) -> bool:
        """Remove what was found; False if it is no longer valid."""
        if not plan.holds(self.store.segments):
            return False
        tracking, self.tracking = self.tracking, False
        for part in plan.parts:
            self._take_rows(part.segment, part.stretches, last_is_known=True)
        self.tracking = tracking
        if tracking and plan.journal:
            self._note(*plan.journal[0])
            self.journal += plan.journal[1:]
        self._settle_floor()
        return True

    def _oldest_by_trail(self, subject: bytes, trail: array[int], count: int) -> None:
        """Remove by the sequences and sizes in the trail; no block is read."""
        store, segments = self.store, self.store.segments
        at, stop = 0, 2 * count
        while at < stop:
            first = last = trail[at]
            size = trail[at + 1]
            segment = segments.all[segments.at(first)]
            at += 2
            while at < stop and trail[at] == last + 1 and last < segment.last_seq:
                last += 1
                size += trail[at + 1]
                at += 2
            store.index.removed(subject, last - first + 1)
            self._mark_range(segment, first, last)
            self._count_out(segment, count=last - first + 1, size=size)

    def _trail(self, subject: bytes, entry: SubjectEntry) -> array[int]:
        """Rebuild the trail (sequence and size of every message) by reading the blocks."""
        trail = array("q")
        segments, sizing = self.store.segments, self.store.sizing
        if entry.count == 1 and (found := self.store.rows(entry.last)) is not None:
            return array("q", (entry.last, sizing.of_row(*found)))
        for segment in self._may_hold(subject, entry):
            view = segments.view(segment)
            for begin, end in view.stretches_of(subject):
                for start, stop in self._live(segment, view, begin, end):
                    for row in range(start, stop):
                        trail.extend((view.rows.seq(row), sizing.of_row(view.rows, row)))
        return trail

    def set_floor(self, seq: int) -> None:
        self.store.segments.floor = seq
        self.store.index.floor = seq

    def take_journal(self) -> list[tuple[int, int]]:
        taken, self.journal = self.journal, []
        return taken

    # -- the bounds of a subject ------------------------------------------------------------------

    def search_up(self, subject: bytes, entry: SubjectEntry) -> int:
        """Its first stored sequence; `entry.first` is a lower bound."""
        if entry.count == 1 and self.store.has(entry.last):
            return entry.last
        segment, stretches = self._oldest_stretches(subject, entry, 1)
        return self.store.segments.view(segment).rows.seq(stretches[0][0])

    def search_down(self, subject: bytes, entry: SubjectEntry) -> int:
        """Its last stored sequence; `entry.last` is an upper bound."""
        segments = self.store.segments
        for position in range(segments.at(entry.last), -1, -1):
            segment = segments.all[position]
            if not segments.holds(segment, subject):
                continue
            view = segments.view(segment)
            end_row = row_at(segment, view.rows, entry.last + 1)
            for begin, end in reversed(view.stretches_of(subject)):
                live = list(self._live(segment, view, begin, min(end, end_row)))
                if live:
                    return view.rows.seq(live[-1][1] - 1)
        raise AssertionError(f"subject {subject!r} counts {entry.count} messages, none is stored")

    def _oldest_stretches(
        self, subject: bytes, entry: SubjectEntry, limit: int, *, start: int = 0
    ) -> tuple[Segment, list[Stretch]]:
        """Rows of the subject in the first segment that has some, at most `limit` of them."""
        segments = self.store.segments
        low = max(entry.first, segments.floor, start)
        for segment in self._may_hold(subject, entry):
            if segment.last_seq < low:
                continue
            rows = segments.view(segment).rows
            stretches = segments.view(segment).stretches_of(subject)
            first_row = row_at(segment, rows, low)
            position = max(bisect_right(stretches, (first_row, segment.rows)) - 1, 0)
            later = stretches[position:]
            if later and later[0][0] < first_row:
                later[0] = (first_row, max(first_row, later[0][1]))
            found = first_rows(stored_of(segment, rows, later), limit)
            if found:
                return segment, found
        raise AssertionError(f"subject {subject!r} counts {entry.count} messages, none is stored")

    def _may_hold(self, subject: bytes, entry: SubjectEntry) -> Iterator[Segment]:
        """Segments that may contain messages of the subject, ascending."""
        segments = self.store.segments
        for segment in segments.from_seq(max(entry.first, segments.floor)):
            if segment.first_seq > entry.last:
                return
            if segments.holds(segment, subject):
                yield segment

    def _live(self, segment: Segment, view: View, begin: int, end: int) -> Iterable[Stretch]:
        begin = max(begin, row_at(segment, view.rows, self.store.segments.floor))
        if begin >= end:
            return ()
        if segment.deleted is None:
            return ((begin, end),)
        return without_deleted(segment, view.rows, begin, end)

    # -- bookkeeping ------------------------------------------------------------------------------

    def _take_rows(
        self,
        segment: Segment,
        stretches: list[Stretch],
        *,
        mark: bool = True,
        last_is_known: bool = False,
    ) -> int:
        """Remove stored rows. With `mark` False, the caller raises the floor instead of marking
        rows. `last_is_known`: if a subject keeps one message, it is the `last` of its entry."""
        if not stretches:
            return 0
        rows = self.store.segments.view(segment).rows
        size = self._uncount(rows, stretches, last_is_known=last_is_known)
        count = sum([end - begin for begin, end in stretches])
        if mark:
            self._mark(segment, rows, stretches)
        self._count_out(segment, count=count, size=size)
        return count

    def _uncount(self, rows: Rows, stretches: list[Stretch], *, last_is_known: bool = False) -> int:
        """Take the rows out of the index. Returns their size. A trail that lost a message in the
        middle no longer adds up; `trail_of` notices."""
        sizing = self.store.sizing
        return self.store.index.remove_rows(
            rows,
            stretches,
            per_message=sizing.per_message,
            per_header=sizing.per_header,
            last_is_known=last_is_known,
        )

    def _count_out(self, segment: Segment, *, count: int, size: int) -> None:
        store = self.store
        segment.live -= count
        segment.live_size -= size
        segment.deletes_written = False
        store.messages -= count
        store.bytes -= size
        if not segment.live:
            store.segments.discard(store.segments.at(segment.first_seq))

    def _mark(self, segment: Segment, rows: Rows, stretches: list[Stretch]) -> None:
        if len(stretches) > FEW_STRETCHES:
            self._mark_many(segment, rows, stretches)
            return
        for begin, end in stretches:
            for first, last in ranges(rows, begin, end):
                self._mark_range(segment, first, last)

    def _mark_many(self, segment: Segment, rows: Rows, stretches: list[Stretch]) -> None:
        """Like marking each range, with one bitmap operation for all."""
        gone = BitMap64(rows.seqs_of(stretches))
        segment.deleted = gone if segment.deleted is None else segment.deleted | gone
        for begin, end in stretches if self.tracking else ():
            for first, last in ranges(rows, begin, end):
                self._note(first, last)

    def _mark_range(self, segment: Segment, first: int, last: int) -> None:
        if first == self.store.segments.floor:
            self.set_floor(last + 1)  # a work queue that is acked in order needs no bitmap
        else:
            segment.mark_deleted(first, last)
        if self.tracking:
            self._note(first, last)

    def _note(self, first: int, last: int) -> None:
        note_range(self.journal, first, last)

    def _forget_segment(self, segment: Segment) -> None:
        """Take a whole segment at the front out of the index; its block is read from disk only if
        rows were removed."""
        store, segments = self.store, self.store.segments
        if segment.live == segment.rows and not segments.in_memory(segment):
            for subject, facts in segments.subjects(segment).items():
                store.index.removed(subject, facts[0])
        else:
            end = segment.last_seq + 1
            live = live_stretches(segments, segment, _EVERYTHING, start=0, stop=end)
            self._uncount(segments.view(segment).rows, list(live))

    def _index_again(self) -> None:
        """Rebuild the index: if little is left, that is faster than removing the rest."""
        index, segments = self.store.index, self.store.segments
        index.clear()
        for segment in segments.all:
            rows = segments.view(segment).rows
            if segment.deleted is None and segments.floor <= segment.first_seq:
                index.add_rows(rows)
                continue
            end = segment.last_seq + 1
            for begin, stop in live_stretches(segments, segment, _EVERYTHING, start=0, stop=end):
                for row in range(begin, stop):
                    seq = rows.seq(row)
                    index.added(rows.subject(row), count=1, first=seq, last=seq)

    def _settle_floor(self) -> None:
        """Raise the first sequence to that of a stored message."""
        store, segments = self.store, self.store.segments
        if not segments.all:
            self.set_floor(store.last_seq + 1)
            return
        segment = segments.all[0]
        floor = max(segments.floor, segment.first_seq)
        if not segment.contiguous:
            rows = segments.view(segment).rows
            floor = rows.seq(rows.first_at_or_after(floor))
            while segment.deleted is not None and floor in segment.deleted:
                floor = rows.seq(rows.first_at_or_after(floor + 1))
        else:
            while segment.deleted is not None and floor in segment.deleted:
                floor += 1
        self.set_floor(floor)


def _is_long_run(seqs: Sequence[int]) -> bool:
    """Whether the ascending sequences are many, and have no gap."""
    return len(seqs) > FEW_STRETCHES and seqs[-1] - seqs[0] + 1 == len(seqs)
