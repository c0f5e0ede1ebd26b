"""Searching stored rows: by subject filter, by time, by position from either end.

Owns: the walk over segments that skips removed rows and segments that cannot match.
May not touch: what it reads; it changes nothing but caches.
Spec: NATS JetStream: next and last by subject, num_pending, deliver policies.

Work is bounded by the caller's limits, or done in steps; a segment that its summary rules out costs
one comparison with its subjects."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice

from broker.store.block.codec import Block, BlockBuilder, Rows
from broker.store.block.columns import Columns, Sizing
from broker.store.index.subject_filter import SubjectFilter
from broker.store.segments import Segment, Segments, View
from broker.subjects import Steps

NAMES_PER_STEP = 512  # subjects that one step compares with a filter
MISSING_PER_STEP = 4096  # missing sequences that one step lists
SEGMENT_WORK = 64  # cost of visiting a segment, in units of missing sequences
ABSENT_PER_STEP = 32  # subjects searched for in segments without them, per step: microseconds each
_EVERYTHING = SubjectFilter(())


@dataclass(frozen=True, slots=True)
class MatchedRows:
    """Matching rows by block. Everything below `next_seq` has been searched: continue there."""

    groups: list[tuple[Rows, list[int]]]
    next_seq: int
    count: int


def live_stretches(
    segments: Segments, segment: Segment, wanted: SubjectFilter, *, start: int, stop: int
) -> Iterator[tuple[int, int]]:
    """Ranges of rows (first, last + 1) that match, are stored, and lie in [start, stop)."""
    view = segments.view(segment)
    return stretches_in(segments, segment, view, wanted, start=start, stop=stop)


def stretches_in(
    segments: Segments,
    segment: Segment,
    view: View,
    wanted: SubjectFilter,
    *,
    start: int,
    stop: int,
) -> Iterator[tuple[int, int]]:
    """Like live_stretches, for a segment whose rows are loaded."""
    rows = view.rows
    low = max(start, segments.floor)
    first_row = row_at(segment, rows, low)
    end_row = segment.rows if stop > segment.last_seq else row_at(segment, rows, stop)
    stretches = view.select(wanted)
    position = max(bisect_right(stretches, (first_row, segment.rows)) - 1, 0)
    for begin, end in stretches[position:] if position else stretches:
        if begin >= end_row:
            return
        begin, end = max(begin, first_row), min(end, end_row)  # noqa: PLW2901
        if begin < end:
            yield from without_deleted(segment, rows, begin, end)


def without_deleted(
    segment: Segment, rows: Rows, begin: int, end: int
) -> Iterator[tuple[int, int]]:
    """The range without its removed rows, as smaller ranges."""
    deleted = segment.deleted
    if deleted is None:
        yield begin, end
        return
    low, high = rows.seq(begin), rows.seq(end - 1) + 1
    if not deleted.range_cardinality(low, high):
        yield begin, end
        return
    for seq in deleted.iter_equal_or_larger(low):
        if seq >= high:
            break
        row = row_at(segment, rows, seq)
        if row > begin:
            yield begin, row
        begin = row + 1
    if begin < end:
        yield begin, end


def row_at(segment: Segment, rows: Rows, seq: int) -> int:
    """The first row at or above `seq`."""
    if segment.contiguous:
        return min(max(seq - segment.first_seq, 0), segment.rows)
    return rows.first_at_or_after(seq)


def ranges(rows: Rows, begin: int, end: int) -> list[tuple[int, int]]:
    """The sequences of the rows, as ranges: one, or one for each row."""
    first, last = rows.seq(begin), rows.seq(end - 1)
    if last - first == end - 1 - begin:
        return [(first, last)]
    return [(seq, seq) for seq in map(rows.seq, range(begin, end))]


@dataclass(frozen=True, slots=True)
class _Seen:
    """A segment between two steps, during which it may be removed or rewritten."""

    segments: Segments
    segment: Segment
    rows: int

    @classmethod
    def now(cls, segments: Segments, segment: Segment) -> _Seen:
        return cls(segments, segment, segment.rows)

    @property
    def changed(self) -> bool:
        """Whether it was removed or rewritten. The tail only grows; it is read in one step."""
        segments, segment = self.segments, self.segment
        if segment is segments.tail:
            return False
        return segments.last_up_to(segment.first_seq) is not segment or segment.rows != self.rows

    def subjects(self) -> Iterator[list[tuple[bytes, list[int]]]]:
        """Its subjects and their facts, in parts; ends early when it changes."""
        for at in range(0, self.rows, NAMES_PER_STEP):
            if self.changed:
                return
            subjects = self.segments.subjects(self.segment)
            if at >= len(subjects):
                return
            yield list(islice(subjects.items(), at, at + NAMES_PER_STEP))


def may_hold_steps(seen: _Seen, wanted: SubjectFilter) -> Steps[bool]:
    """Like Segments.may_hold. Afterwards the filter has cached all subjects of the segment."""
    segments, segment = seen.segments, seen.segment
    if not wanted.patterns or segment is segments.tail:
        return True
    names = wanted.literals
    held = False
    if not names:
        for part in seen.subjects():
            held = any([wanted(subject) for subject, _ in part]) or held
            yield
        return held
    for at in range(0, len(names), NAMES_PER_STEP):
        if any(segments.holds(segment, name) for name in names[at : at + NAMES_PER_STEP]):
            return True
        if at + NAMES_PER_STEP < len(names):
            yield
    return False


def next_stored(segments: Segments, *, start: int) -> int:
    """The first stored sequence at or above `start`, 0 if there is none."""
    for segment in segments.from_seq(start):
        stop = segment.last_seq + 1
        for begin, _ in live_stretches(segments, segment, _EVERYTHING, start=start, stop=stop):
            return segments.view(segment).rows.seq(begin)
    return 0


def next_matching_steps(
    segments: Segments, wanted: SubjectFilter, *, start: int, last: int
) -> Steps[int]:
    """The first matching sequence at or above `start`, 0 if there is none. The store may change
    between two steps: what was stored from the first step to the last one is not missed."""
    cursor = start
    while cursor <= last and (segment := segments.first_from(cursor)) is not None:
        seen = _Seen.now(segments, segment)
        held = yield from may_hold_steps(seen, wanted)
        if seen.changed:
            continue
        if held:
            stop = last + 1
            for begin, _ in live_stretches(segments, segment, wanted, start=cursor, stop=stop):
                return segments.view(segment).rows.seq(begin)
        cursor = max(cursor, segment.last_seq) + 1
        yield
    return 0


def last_matching_steps(segments: Segments, wanted: SubjectFilter, *, last: int) -> Steps[int]:
    """The last matching sequence at or below `last`, 0 if there is none; see
    next_matching_steps."""
    cursor = last
    while True:
        segment = segments.last_up_to(cursor)
        if segment is None:
            return 0
        seen = _Seen.now(segments, segment)
        held = yield from may_hold_steps(seen, wanted)
        if seen.changed:
            continue
        found = -1
        if held:
            for _, end in live_stretches(segments, segment, wanted, start=0, stop=cursor + 1):
                found = end - 1
        if found >= 0:
            return segments.view(segment).rows.seq(found)
        cursor = segment.first_seq - 1
        yield


def take(
    segments: Segments,
    wanted: SubjectFilter,
    *,
    start: int,
    limit_rows: int,
    limit_bytes: int,
    limit_segments: int,
    limit_names: int,
    last: int,
) -> MatchedRows:
    """Matching rows from `start` on. The first match is taken even if it exceeds limit_bytes. Ends
    early when the limits on blocks read or subjects compared are reached."""
    groups: list[tuple[Rows, list[int]]] = []
    count = size = 0
    next_seq = start
    for segment in segments.from_seq(start):
        if count >= limit_rows or limit_segments <= 0 or limit_names <= 0:
            break
        next_seq = max(start, segment.first_seq)
        limit_names -= len(wanted.literals) or segment.rows if wanted.patterns else 1
        if segments.may_hold(segment, wanted):
            limit_segments -= 1
            rows = segments.view(segment).rows
            indices: list[int] = []
            for begin, end in live_stretches(
                segments, segment, wanted, start=start, stop=segment.last_seq + 1
            ):
                kept = min(end, begin + limit_rows - count - len(indices))
                kept, size = _within(rows, begin, kept, size=size, limit=limit_bytes)
                if kept == begin and not count and not indices:
                    kept = begin + 1
                indices.extend(range(begin, kept))
                if kept < end:
                    break
            else:
                kept = -1
            if indices:
                groups.append((rows, indices))
                count += len(indices)
            if kept >= 0:
                return MatchedRows(groups, rows.seq(kept), count)
        next_seq = max(start, segment.last_seq + 1)
    else:
        next_seq = max(start, last + 1)
    return MatchedRows(groups, next_seq, count)


def _within(rows: Rows, begin: int, end: int, *, size: int, limit: int) -> tuple[int, int]:
    """The end of the rows that fit under the limit on header and data bytes, and their size."""
    if isinstance(rows, Block):
        columns = Columns(rows)
        headers, data = columns.header_ends, columns.data_ends
        whole = headers[end] - headers[begin] + data[end] - data[begin]
        if size + whole <= limit:
            return end, size + whole
    for row in range(begin, end):
        size += rows.row_size(row)
        if size > limit:
            return row, size
    return end, size


def count_matching_steps(
    segments: Segments, wanted: SubjectFilter, *, start: int, last: int
) -> Steps[int]:
    """The number of stored messages from `start` to `last` that match. A message that is removed
    between two steps may or may not be counted."""
    total, cursor, absent = 0, start, 0
    while cursor <= last and (segment := segments.first_from(cursor)) is not None:
        seen = _Seen.now(segments, segment)
        counted = yield from _count_in(seen, wanted, start=cursor, last=last)
        if seen.changed:
            continue
        total += counted
        cursor = max(cursor, segment.last_seq) + 1
        absent += max(len(wanted.literals), 1)
        if counted or absent >= ABSENT_PER_STEP:
            absent = 0
            yield
    return total


def _count_in(seen: _Seen, wanted: SubjectFilter, *, start: int, last: int) -> Steps[int]:
    segments, segment = seen.segments, seen.segment
    whole = segment.first_seq >= max(start, segments.floor) and segment.last_seq <= last
    if whole and not wanted.patterns:
        return segment.live
    untouched = segment.live == segment.rows and segment is not segments.tail
    if whole and untouched and not wanted.literals:  # literals are in few segments, found quickly
        total = 0
        for part in seen.subjects():
            total += sum(facts[0] for subject, facts in part if wanted(subject))
            yield
        return total
    held = yield from may_hold_steps(seen, wanted)
    if not held or seen.changed:
        return 0
    stretches = live_stretches(segments, segment, wanted, start=start, stop=last + 1)
    return sum(end - begin for begin, end in stretches)


def first_at_time(segments: Segments, time_ns: int) -> int:
    """The first stored sequence with a time of at least `time_ns`, 0 if there is none."""
    for segment in segments.all:
        if segment.max_time < time_ns:
            continue
        rows = segments.view(segment).rows
        for begin, end in live_stretches(
            segments, segment, _EVERYTHING, start=0, stop=segment.last_seq + 1
        ):
            for row in range(begin, end):
                if rows.time(row) >= time_ns:
                    return rows.seq(row)
    return 0


def about_time(segments: Segments, seq: int) -> int:
    """Approximate time at which this sequence was stored, without reading its block: interpolated
    between the newest times of the previous segment and its own. 0: unknown."""
    position = segments.at(seq)
    if position < 0:
        return segments.all[0].max_time if segments.all else 0
    segment = segments.all[position]
    if position:
        begin = segments.all[position - 1].max_time
    else:
        begin = segment.view.rows.time(0) if segment.view is not None else segment.max_time
    rows = max(segment.last_seq - segment.first_seq, 1)
    share = min((seq - segment.first_seq) / rows, 1.0)
    return begin + int((segment.max_time - begin) * share)


def nth_newest(segments: Segments, wanted: SubjectFilter, count: int) -> int:
    """The sequence of the count-th newest match, 0 if there are fewer."""
    for segment in reversed(segments.all):
        if not wanted.patterns and segment.live < count:
            count -= segment.live
            continue
        if not segments.may_hold(segment, wanted):
            continue
        end = segment.last_seq + 1
        found = list(live_stretches(segments, segment, wanted, start=0, stop=end))
        for begin, stop in reversed(found):
            if stop - begin >= count:
                return segments.view(segment).rows.seq(stop - count)
            count -= stop - begin
    return 0


def nth_oldest(segments: Segments, count: int) -> int:
    """The sequence of the count-th oldest message, 0 if there are fewer."""
    for segment in segments.all:
        if segment.live < count:
            count -= segment.live
            continue
        for begin, end in _stored(segments, segment):
            if end - begin >= count:
                return segments.view(segment).rows.seq(begin + count - 1)
            count -= end - begin
    return 0


def behind_size(segments: Segments, size: int, sizing: Sizing) -> int:
    """The first sequence with messages of at least `size` bytes below it, 0 if there is none."""
    for segment in segments.all:
        if size <= 0:
            return max(segment.first_seq, segments.floor)
        if segment.live_size < size:
            size -= segment.live_size
            continue
        rows = segments.view(segment).rows
        for begin, end in _stored(segments, segment):
            for row in range(begin, end):
                if size <= 0:
                    return rows.seq(row)
                size -= sizing.of_row(rows, row)
    return 0


def _stored(segments: Segments, segment: Segment) -> Iterator[tuple[int, int]]:
    end = segment.last_seq + 1
    return live_stretches(segments, segment, _EVERYTHING, start=0, stop=end)


def blocks(segments: Segments, *, first: int, last: int) -> Iterator[bytes]:
    """Sealed blocks with exactly the stored rows of the range.

    The store may change between two blocks: each shows the state at the time it is read."""
    cursor = first
    while cursor <= last:
        cursor = max(cursor, segments.floor)
        position = max(segments.at(cursor), 0)
        if position < len(segments.all) and segments.all[position].last_seq < cursor:
            position += 1
        if position >= len(segments.all) or segments.all[position].first_seq > last:
            return
        segment = segments.all[position]
        raw = _block(segments, segment, low=cursor, last=last)
        cursor = segment.last_seq + 1
        if raw:
            yield raw


def _block(segments: Segments, segment: Segment, *, low: int, last: int) -> bytes:
    rows = segments.view(segment).rows
    untouched = segment.live == segment.rows
    if untouched and segment.first_seq >= low and segment.last_seq <= last:
        return bytes(rows.raw) if isinstance(rows, Block) else segments.builder.build()
    stored = live_stretches(segments, segment, _EVERYTHING, start=low, stop=last + 1)
    kept = [row for begin, end in stored for row in range(begin, end)]
    return _only(rows, kept) if kept else b""


def live_block(segments: Segments, segment: Segment) -> bytes:
    """A block with only the stored rows of the segment."""
    return _block(segments, segment, low=0, last=segment.last_seq)


def _only(rows: Rows, kept: list[int]) -> bytes:
    builder = BlockBuilder(rows.seq(kept[0]))
    if isinstance(rows, Block):
        builder.append_block(rows, skip=set(range(rows.rows)).difference(kept))
    else:
        for i in kept:
            subject, headers, data = rows.subject(i), rows.headers(i), rows.data(i)
            builder.append(subject, headers, data, time_ns=rows.time(i), seq=rows.seq(i))
    return builder.build()


def gaps(segments: Segments, *, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Inclusive ranges within [first, last] without stored messages, ascending."""
    expected = first
    for segment in segments.from_seq(first):
        if segment.first_seq > last:
            break
        rows = segments.view(segment).rows if not segment.contiguous else None
        end = segment.last_seq + 1
        for low, high in _stored_ranges(segments, segment, rows, end):
            if low > last:
                break
            if low > expected:
                yield expected, low - 1
            expected = max(expected, high + 1)
    if expected <= last:
        yield expected, last


def missing_steps(
    segments: Segments, *, first: int, last: int, limit: int
) -> Steps[tuple[int, ...]]:
    """The first `limit` sequences within [first, last] without stored messages."""
    found: list[int] = []
    work = 0
    while first <= last and len(found) < limit:
        segment = segments.first_from(first)
        upto = last if segment is None else min(last, max(segment.last_seq, first))
        ranges = gaps(segments, first=first, last=upto)
        most = min(limit - len(found), MISSING_PER_STEP)
        part = list(islice(chain.from_iterable(range(a, b + 1) for a, b in ranges), most))
        found += part
        first = part[-1] + 1 if len(part) == most else upto + 1
        work += len(part) + SEGMENT_WORK
        if segment is not None and not segment.contiguous:
            work = MISSING_PER_STEP  # its rows may have been read from disk
        if work >= MISSING_PER_STEP:
            work = 0
            yield
    return tuple(found)


def _stored_ranges(
    segments: Segments, segment: Segment, rows: Rows | None, end: int
) -> Iterator[tuple[int, int]]:
    """Inclusive ranges of consecutive stored sequences of one segment."""
    if rows is not None:
        for begin, stop in live_stretches(segments, segment, _EVERYTHING, start=0, stop=end):
            for row in range(begin, stop):
                yield rows.seq(row), rows.seq(row)
        return
    low = max(segment.first_seq, segments.floor)
    for gone in segment.deleted.iter_equal_or_larger(low) if segment.deleted is not None else ():
        if gone > low:
            yield low, gone - 1
        low = gone + 1
    if low < end:
        yield low, end - 1
