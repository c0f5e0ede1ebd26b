"""Which stored rows a scan sends next: one block of them, found with bounded work.

Owns: skipping segments that hold nothing the reader wants, and picking its rows and columns.
May not touch: sockets, the pace of a scan (server.py), what is stored.
Spec: broker/scan/protocol.py. A block without removed rows is sent whole, even if the reader wants
only most of it: cutting it costs more than the few rows at its edges, which the reader trims.
Segments are ruled out by their summaries; what a summary tells is not read from the block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from broker.scan.projection import NOTHING_ELSE, omitted_by, only_sequences, projected
from broker.store.block.codec import Block, BlockBuilder, Rows
from broker.store.index.subject_filter import SubjectFilter
from broker.store.search import live_stretches
from broker.store.segments import Segment, Segments

SEGMENTS_PER_TURN: Final = 32  # that are ruled out by hashes of their subjects, microseconds each
MOSTLY_WANTED: Final = 2  # a block is sent whole if at least one in so many rows is wanted
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
    block: bytes  # the rows to send; b"" if there are none
    rows: int  # stored in the range that was looked at, on any subject
    last_seq: int  # of that range


def next_rows(store: StoredSegments, cursor: int, last: int, selection: Selection) -> Found | None:
    """The next rows from `cursor` to `last`; None if nothing is stored there. A result without a
    block means that the work was enough for one turn: continue behind `last_seq`."""
    segments, wanted = store.segments, selection.wanted
    rows = 0
    for _ in range(SEGMENTS_PER_TURN if wanted.literals else 1):
        segment = segments.first_from(cursor)
        if segment is None or segment.last_seq < cursor or segment.first_seq > last:
            return Found(b"", rows, last) if rows else None
        end = min(segment.last_seq, last)
        if segments.may_hold(segment, wanted):
            block, stored = _rows_of(segments, segment, cursor, last, selection)
            return Found(block, rows + stored, end)
        rows += _stored(segments, segment, cursor, last)
        cursor = end + 1
        if cursor > last:
            break
    return Found(b"", rows, cursor - 1)


def _rows_of(
    segments: Segments, segment: Segment, low: int, last: int, selection: Selection
) -> tuple[bytes, int]:
    """The block to send, and how many rows of the range are stored."""
    untouched = segment.live == segment.rows
    wanted, omitted = selection.wanted, selection.omitted
    if untouched and segment.contiguous and omitted == NOTHING_ELSE and not wanted.patterns:
        first, end = max(low, segment.first_seq), min(last, segment.last_seq)
        return only_sequences(first, end), end - first + 1
    rows = segments.view(segment).rows
    kept = list(live_stretches(segments, segment, wanted, start=low, stop=last + 1))
    count = sum(stop - start for start, stop in kept)
    stored = count if not wanted.patterns else _stored(segments, segment, low, last)
    if not count:
        return b"", stored
    whole = untouched and not wanted.patterns and count * MOSTLY_WANTED >= segment.rows
    if whole or count == segment.rows:
        raw = rows.raw if isinstance(rows, Block) else segments.builder.build()
    else:
        raw = _picked(rows, kept, count)
    return projected(raw, omitted), stored


def _stored(segments: Segments, segment: Segment, low: int, last: int) -> int:
    if max(low, segments.floor) <= segment.first_seq and segment.last_seq <= last:
        return segment.live
    stretches = live_stretches(segments, segment, _EVERYTHING, start=low, stop=last + 1)
    return sum(stop - start for start, stop in stretches)


def _picked(rows: Rows, kept: Stretches, count: int) -> bytes:
    """A block of these rows. Few are copied one by one: the set of the others would be large."""
    builder = BlockBuilder(rows.seq(kept[0][0]))
    if isinstance(rows, Block) and count * 16 > rows.rows:
        picked = {row for start, stop in kept for row in range(start, stop)}
        builder.append_block(rows, skip=set(range(rows.rows)) - picked)
        return builder.build()
    for start, stop in kept:
        for i in range(start, stop):
            subject, headers, data = rows.subject(i), rows.headers(i), rows.data(i)
            builder.append(subject, headers, data, time_ns=rows.time(i), seq=rows.seq(i))
    return builder.build()
