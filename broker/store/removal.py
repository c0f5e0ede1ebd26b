"""Removing messages from a store: one, many, everything below a sequence, or all that match.

Owns: the bookkeeping of a removal (segments, index, counters, the first sequence) and the journal
of removed ranges.
May not touch: the reasons for a removal.
Spec: NATS JetStream stream state: first_seq is the sequence of a stored message, or last_seq + 1. A
segment without stored rows is dropped."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from pyroaring import BitMap64

from broker.store.block.codec import Block, Rows
from broker.store.block.columns import Sizing, blanked
from broker.store.index import SubjectEntry, SubjectIndex
from broker.store.index.subject_filter import SubjectFilter
from broker.store.search import live_stretches, ranges, row_at, subjects_of, without_deleted
from broker.store.segments import Run, Segment, Segments, View

_MANY_ROWS = 64  # so many of one subject are removed together
_EVERYTHING = SubjectFilter(())

Stretch = tuple[int, int]  # a range of rows: first, last + 1


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
            whole = 0
            for segment in segments.all:
                if segment.last_seq >= bound:
                    break
                self._forget_segment(segment)
                whole += 1
            segments.discard_front(whole)
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
        for segment in list(segments.from_seq(start)):
            if segment.first_seq >= bound:
                break
            if not wanted.literals or segments.may_hold(segment, wanted):
                found = live_stretches(segments, segment, wanted, start=start, stop=bound)
                self._take_rows(segment, list(found))
        self._settle_floor()
        return messages - store.messages

    def oldest_of(self, subject: bytes, entry: SubjectEntry, count: int) -> None:
        """Remove the `count` oldest messages of the subject."""
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
        start = entry.first
        while left is not None and count > 0:
            if count > _MANY_ROWS:
                segment, rows = self._rows_from(subject, left, start)
                taken = rows[:count]
                newest = self.store.segments.view(segment).rows.seq(taken[-1])
                start = segment.last_seq + 1
                count -= self._take_rows_of(segment, subject, taken)
            else:
                segment, stretches = self._oldest_stretches(subject, left, count)
                newest = self.store.segments.view(segment).rows.seq(stretches[-1][1] - 1)
                count -= self._take_rows(segment, stretches, of=subject)
            left = self.store.index.get(subject)
            if left is not None:
                left.first = newest  # removed, but a better lower bound than before
        return left

    def _rows_from(
        self, subject: bytes, entry: SubjectEntry, start: int
    ) -> tuple[Segment, list[int]]:
        """All stored rows of the subject in the first segment that has some."""
        segments = self.store.segments
        low = max(start, segments.floor)
        for segment in self._may_hold(subject, entry):
            if segment.last_seq < low:
                continue
            view, deleted, first = segments.view(segment), segment.deleted, segment.first_seq
            begun = row_at(segment, view.rows, low)
            stretches = view.stretches_of(subject)
            found = [row for low, high in stretches for row in range(max(low, begun), high)]
            if deleted is not None and segment.contiguous:
                found = [seq - first for seq in BitMap64([first + row for row in found]) - deleted]
            elif deleted is not None:
                found = [row for row in found if view.rows.seq(row) not in deleted]
            if found:
                return segment, found
        raise AssertionError(f"subject {subject!r} counts {entry.count} messages, none is stored")

    def oldest_of_many(self, excess: Mapping[bytes, int]) -> None:
        """Remove so many of the oldest messages of each subject, in one pass over the blocks. The
        journal is that of one `oldest_of` after the other, in the order of the subjects."""
        segments, index = self.store.segments, self.store.index
        left = {name: count for name, count in excess.items() if count > 0}
        tracking, self.tracking = self.tracking, False
        taken: dict[bytes, list[Stretch]] = {}  # sequences
        for segment in list(segments.all) if left else ():
            view = segments.view(segment)
            found = self._oldest_in(segment, view, left)
            if tracking:
                for subject, begin, end in found:
                    taken.setdefault(subject, []).extend(ranges(view.rows, begin, end))
            self._take_rows(segment, [(begin, end) for _, begin, end in found])
            if not left:
                break
        self.tracking = tracking
        for subject in sorted(taken):
            for first, last in taken[subject]:
                self._note(first, last)
        for subject in excess:
            entry = index.get(subject)
            if entry is not None and entry.count == 1 and self.store.has(entry.last):
                entry.first = entry.last
        self._settle_floor()

    def _oldest_in(self, segment: Segment, view: View, left: dict[bytes, int]) -> list[Run]:
        """Stored rows of these subjects, at most so many of each; `left` is what is still missing
        afterwards."""
        first_row = row_at(segment, view.rows, self.store.segments.floor)
        found: list[Run] = []
        for subject, start, end in view.runs:
            count = left.get(subject)
            if count is None or end <= first_row:
                continue
            begin = max(start, first_row)
            whole = segment.deleted is None
            live = ((begin, end),) if whole else without_deleted(segment, view.rows, begin, end)
            for low, high in live:
                stop = high if high - low <= count else low + count
                found.append((subject, low, stop))
                count -= stop - low
                if not count:
                    break
            if count:
                left[subject] = count
            else:
                del left[subject]
        return found

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
        self, subject: bytes, entry: SubjectEntry, limit: int
    ) -> tuple[Segment, list[Stretch]]:
        """Rows of the subject in the first segment that has some, at most `limit` of them."""
        segments = self.store.segments
        low = max(entry.first, segments.floor)
        for segment in self._may_hold(subject, entry):
            view = segments.view(segment)
            first_row = row_at(segment, view.rows, low)
            stretches = view.stretches_of(subject)
            position = max(bisect_right(stretches, (first_row, segment.rows)) - 1, 0)
            found: list[Stretch] = []
            for begin, end in stretches[position:]:
                live = self._live(segment, view, max(begin, first_row), end)
                for start, stop in live:
                    found.append((start, min(stop, start + limit)))
                    limit -= found[-1][1] - start
                    if not limit:
                        break
                if not limit:
                    break
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
        of: bytes | None = None,
    ) -> int:
        """Remove stored rows, all of one subject if it is told. With `mark` False the caller raises
        the floor instead of marking."""
        if not stretches:
            return 0
        store = self.store
        view = store.segments.view(segment)
        rows = view.rows
        count = size = 0
        for begin, end in stretches:
            count += end - begin
            size += store.sizing.of_stretch(rows, view.columns, begin, end)
            for subject, gone in subjects_of(view, begin, end) if of is None else ():
                store.index.removed(subject, gone)
                # A trail that lost a message in the middle no longer adds up; trail_of notices.
            if mark:
                self._mark(segment, view, begin, end)
        if of is not None:
            store.index.removed(of, count)
        self._count_out(segment, count=count, size=size)
        return count

    def _take_rows_of(self, segment: Segment, subject: bytes, rows: list[int]) -> int:
        """Remove many stored rows of one subject, which need not be neighbours."""
        store = self.store
        view = store.segments.view(segment)
        size = store.sizing.of_rows(view.rows, view.columns, rows)
        seqs = list(map(view.rows.seq, rows))
        gone = BitMap64(seqs)
        segment.deleted = gone if segment.deleted is None else segment.deleted | gone
        for seq in seqs if self.tracking else ():
            self._note(seq, seq)
        store.index.removed(subject, len(rows))
        self._count_out(segment, count=len(rows), size=size)
        return len(rows)

    def _count_out(self, segment: Segment, *, count: int, size: int) -> None:
        store = self.store
        segment.live -= count
        segment.live_size -= size
        segment.deletes_written = False
        store.messages -= count
        store.bytes -= size
        if not segment.live:
            store.segments.discard(store.segments.at(segment.first_seq))

    def _mark(self, segment: Segment, view: View, begin: int, end: int) -> None:
        for first, last in ranges(view.rows, begin, end):
            self._mark_range(segment, first, last)

    def _mark_range(self, segment: Segment, first: int, last: int) -> None:
        if first == self.store.segments.floor:
            self.set_floor(last + 1)  # a work queue that is acked in order needs no bitmap
        else:
            segment.mark_deleted(first, last)
        if self.tracking:
            self._note(first, last)

    def _note(self, first: int, last: int) -> None:
        """Consecutive removals become one range. Consumers on every replica act on the journal, so
        it must not depend on how blocks are cut."""
        journal = self.journal
        if journal and journal[-1][1] == first - 1:
            journal[-1] = (journal[-1][0], last)
        else:
            journal.append((first, last))

    def _forget_segment(self, segment: Segment) -> None:
        """Uncount a whole segment at the front; its block is read only if rows were removed."""
        store, segments = self.store, self.store.segments
        if segment.live == segment.rows:
            for subject, facts in segments.subjects(segment).items():
                store.index.removed(subject, facts[0])
        else:
            view = segments.view(segment)
            end = segment.last_seq + 1
            for begin, stop in live_stretches(segments, segment, _EVERYTHING, start=0, stop=end):
                for subject, count in subjects_of(view, begin, stop):
                    store.index.removed(subject, count)
        store.messages -= segment.live
        store.bytes -= segment.live_size

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
