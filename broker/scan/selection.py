"""Which stored rows a scan sends next: one block of them, found with bounded work.

Owns: skipping segments that hold nothing the reader wants, and picking its rows and columns.
May not touch: sockets, the pace of a scan (server.py), what is stored.
Spec: broker/scan/protocol.py. A block without removed rows is sent whole, even if the reader wants
only most of it: cutting it costs more than the few rows at its ends, which the reader trims.
Segments are ruled out by their summaries; a block is not read for what its summary contains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from broker.scan.projection import NOTHING_ELSE, omitted_by, only_sequences, projected
from broker.store.block.codec import Block, BlockBuilder, Rows
from broker.store.index.subject_filter import SubjectFilter
from broker.store.search import live_stretches, stretches_in
from broker.store.segments import SEAL_ROWS, Segment, Segments, View

SEGMENTS_PER_TURN: Final = 32  # segments ruled out by hashes of their subjects, microseconds each
READS_PER_TURN: Final = 4  # blocks from which rows are picked, a tenth of a millisecond each
READS_PER_BLOCK: Final = 64  # rows picked from this many blocks are sent, however few they are
PICKED_BYTES: Final = 256 << 10  # picked rows of this size are sent
MOSTLY_WANTED: Final = 2  # a block is sent whole if at least 1/2 of its rows is wanted
SEQUENCES_MAX: Final = 1 << 15  # rows of a block of sequences alone
_EVERYTHING: Final = SubjectFilter(())

Stretches = list[tuple[int, int]]  # rows [first, last + 1)


class StoredSegments(Protocol):
    @property
    def segments(self) -> Segments: ...


@dataclass(frozen=True, slots=True)
class Selection:
    """What one scan asks for, apart from the range."""

    wanted: SubjectFilter = _EVERYTHING
    omitted: int = 0  # columns that are not sent

    @classmethod
    def of(cls, subjects: tuple[str, ...], columns: tuple[str, ...]) -> Selection:
        patterns = tuple(pattern.encode() for pattern in subjects)
        return cls(SubjectFilter(patterns) if patterns else _EVERYTHING, omitted_by(columns))


class Found(NamedTuple):
    block: bytes | memoryview  # the rows to send; b"" if there are none yet
    rows: int  # stored rows in the searched range, on any subject
    last_seq: int  # end of that range


class RowPicker:
    """The rows of one scan, block by block. Rows that match a filter are collected from many stored
    blocks until they are worth sending: a block of a few rows costs its reader as much as one of
    thousands."""

    def __init__(
        self,
        store: StoredSegments,
        selection: Selection,
        memory: Callable[[int], memoryview] = lambda size: memoryview(bytearray(size)),
    ) -> None:
        """`memory` is for one stored block, until the next call of `next`."""
        self._store = store
        self._selection = selection
        self._memory = memory
        self._picked: BlockBuilder | None = None
        self._reads = 0  # since rows were sent

    @property
    def holds_rows(self) -> bool:
        """Whether rows were collected that are not sent."""
        return self._picked is not None

    def next(self, cursor: int, last: int) -> Found | None:
        """The next rows from `cursor` to `last`; None if nothing is left there. A result without a
        block means that the turn is over: continue after `last_seq`."""
        segments, wanted = self._store.segments, self._selection.wanted
        rows = reads = 0
        for _ in range(SEGMENTS_PER_TURN):
            segment = segments.first_from(cursor)
            if segment is None or segment.last_seq < cursor or segment.first_seq > last:
                return Found(self.flush(), rows, last) if rows or self.holds_rows else None
            if _may_hold(segments, segment, wanted):
                if not wanted.patterns:
                    return self._unfiltered(segment, cursor, last)
                if reads >= READS_PER_TURN:
                    break
                whole = self._collect(segment, cursor, last)
                if whole:
                    return Found(whole, rows + segment.rows, segment.last_seq)
                reads += 1
            rows += _stored(segments, segment, cursor, last)
            cursor = min(segment.last_seq, last) + 1
            if cursor > last or self._enough():
                return Found(self.flush(), rows, cursor - 1)
        return Found(b"", rows, cursor - 1)

    def flush(self) -> bytes | memoryview:
        """A block of the rows that were collected; b"" if there are none."""
        picked, self._picked, self._reads = self._picked, None, 0
        return projected(picked.build(), self._selection.omitted) if picked is not None else b""

    def _collect(self, segment: Segment, low: int, last: int) -> bytes | memoryview:
        """Collect the matching rows. If all match, and none were collected before, the block itself
        is returned instead."""
        segments, view = self._store.segments, self._view(segment)
        wanted = self._selection.wanted
        kept = list(stretches_in(segments, segment, view, wanted, start=low, stop=last + 1))
        count = sum(stop - start for start, stop in kept)
        if count == segment.rows and not self.holds_rows:
            return self._whole(view)
        self._pick(view.rows, kept, count)
        return b""

    def _enough(self) -> bool:
        picked = self._picked
        return picked is not None and (
            self._reads >= READS_PER_BLOCK
            or picked.nbytes >= PICKED_BYTES
            or picked.rows >= SEAL_ROWS
        )

    def _unfiltered(self, segment: Segment, low: int, last: int) -> Found:
        segments, omitted = self._store.segments, self._selection.omitted
        end = min(segment.last_seq, last)
        untouched = segment.live == segment.rows
        if omitted == NOTHING_ELSE and untouched and segment.contiguous:
            first = max(low, segment.first_seq)
            end = _contiguous(segments, segment, first, last)
            return Found(only_sequences(first, end), end - first + 1, end)
        view = self._view(segment)
        kept = list(stretches_in(segments, segment, view, _EVERYTHING, start=low, stop=last + 1))
        count = sum(stop - start for start, stop in kept)
        if (untouched and count * MOSTLY_WANTED >= segment.rows) or count == segment.rows:
            return Found(self._whole(view), count, end)
        self._pick(view.rows, kept, count)
        return Found(self.flush(), count, end)

    def _view(self, segment: Segment) -> View:
        segments = self._store.segments
        borrowed = segments.borrow(segment, self._memory)
        return segments.view(segment) if borrowed is None else View(borrowed)

    def _whole(self, view: View) -> bytes | memoryview:
        rows = view.rows
        raw = rows.raw if isinstance(rows, Block) else self._store.segments.builder.build()
        return projected(raw, self._selection.omitted)

    def _pick(self, rows: Rows, kept: Stretches, count: int) -> None:
        """Copy these rows. A few are copied one by one: the set of rows to skip would be large."""
        self._reads += 1
        if not count:
            return
        if self._picked is None:
            self._picked = BlockBuilder(rows.seq(kept[0][0]))
        builder = self._picked
        if isinstance(rows, Block) and count == rows.rows:
            builder.append_block(rows)
            return
        if isinstance(rows, Block) and count * 16 > rows.rows:
            picked = {row for start, stop in kept for row in range(start, stop)}
            builder.append_block(rows, skip=set(range(rows.rows)) - picked)
            return
        for start, stop in kept:
            for i in range(start, stop):
                subject, headers, data = rows.subject(i), rows.headers(i), rows.data(i)
                builder.append(subject, headers, data, time_ns=rows.time(i), seq=rows.seq(i))


def _may_hold(segments: Segments, segment: Segment, wanted: SubjectFilter) -> bool:
    """False only if no row can match. Reading a summary costs more than reading the block."""
    if not wanted.literals and segment.subjects is None:
        return True
    return segments.may_hold(segment, wanted)


def _contiguous(segments: Segments, segment: Segment, first: int, last: int) -> int:
    """The end of a range of about SEQUENCES_MAX from `first` on, all of which are stored."""
    end = segment.last_seq
    while end < last and end - first < SEQUENCES_MAX:
        following = segments.first_from(end + 1)
        if (
            following is None
            or following.first_seq != end + 1
            or following.live != following.rows
            or not following.contiguous
        ):
            break
        end = following.last_seq
    return min(end, last)


def _stored(segments: Segments, segment: Segment, low: int, last: int) -> int:
    if max(low, segments.floor) <= segment.first_seq and segment.last_seq <= last:
        return segment.live
    stretches = live_stretches(segments, segment, _EVERYTHING, start=low, stop=last + 1)
    return sum(stop - start for start, stop in stretches)
