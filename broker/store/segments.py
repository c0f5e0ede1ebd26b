"""Segments: the stretches of a stream that are one block each, and the rows behind them.

Owns: the ordered list of segments, the growing last one, sealing, and the cache of loaded blocks.
May not touch: counters of the stream, the subject index, when things are written.
Spec: DESIGN section 5: blocks of 1-2 MB; a sealed block waits in memory until it is written."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
from pyroaring import BitMap64

from broker.store.block.block import Block, BlockBuilder, BlockDamaged, Rows
from broker.store.block.columns import Columns
from broker.store.index.index import SubjectFilter, among_hashes, subject_hashes
from broker.store.state_keys import BLOCK, SUMMARY, BlockFiles

SEAL_BYTES: Final = 1 << 20
SEAL_ROWS: Final = 8192
SUBJECTS_HELD_MAX: Final = 64  # more subjects than this are read from the summary when needed
CACHE_BYTES_MAX: Final = 48 << 20  # one cache serves all streams of a node
_SEARCHES_MAX: Final = 32  # subjects looked for one by one, before all are listed
_SELECTIONS_MAX: Final = 8  # remembered filters per loaded block

Run = tuple[bytes, int, int]  # subject, start row, row behind the last


Subjects = dict[bytes, list[int]]  # subject -> [rows, first row, last row]


class SegmentSummary(msgspec.Struct, array_like=True, frozen=True):
    """What is known of a block without reading it."""

    last_seq: int
    rows: int
    nbytes: int
    max_time: int
    size: int  # what its rows count for in the stream's bytes
    subjects: Subjects  # instead of rows: distance from the segment's first sequence
    last_sizes: list[int]  # per subject the size of its last row, or nothing
    deadlines: list[int] = []  # pairs of sequence and time, see Deadlines


@dataclass(slots=True)
class Segment:
    """Invariant: a row is stored iff its sequence is not below the stream's first sequence and
    not in `deleted`; `live` and `live_size` count just those rows."""

    first_seq: int  # where its range begins; stays when a compaction drops the first row
    last_seq: int = 0
    rows: int = 0
    live: int = 0
    live_size: int = 0
    nbytes: int = 0
    max_time: int = 0
    deleted: BitMap64 | None = None
    subjects: Subjects | None = None  # None: too many to hold, or still growing
    hashes: bytes | None = None  # of its subjects, where these are too many to hold
    view: View | None = None  # held until it is written; always for the growing one
    summary: bytes | None = None  # worked out before the checkpoint that writes it
    written: bool = False
    deletes_written: bool = True

    def name(self, subjects: Subjects) -> None:
        """These are the subjects of its block, which is written by now."""
        few = len(subjects) <= SUBJECTS_HELD_MAX
        self.subjects = subjects if few else None
        self.hashes = None if few else self.hashes or subject_hashes(subjects)

    @property
    def contiguous(self) -> bool:
        return self.last_seq - self.first_seq + 1 == self.rows

    def mark_deleted(self, first: int, last: int) -> None:
        if self.deleted is None:
            self.deleted = BitMap64()
        self.deleted.add_range(first, last + 1)


class View:
    """The rows of one segment, with what readers have worked out about them."""

    __slots__ = ("_columns", "_postings", "_runs", "_searches", "_selections", "rows")

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self._columns: Columns | None = None
        self._searches = 0
        self._runs: list[Run] | None = None
        self._postings: dict[bytes, list[tuple[int, int]]] | None = None
        self._selections: dict[tuple[bytes, ...], tuple[int, list[tuple[int, int]]]] = {}

    def grown(self, runs: Sequence[Run], offset: int) -> None:
        """Rows were appended at `offset`: keep what readers already asked for up to date."""
        if self._runs is not None:
            self._runs += [(name, start + offset, stop + offset) for name, start, stop in runs]
            self._postings = None if self._postings is None else self._post(len(runs))

    @property
    def tracked(self) -> bool:
        """Does `grown` need to be told the subjects of new rows?"""
        return self._runs is not None

    @property
    def runs(self) -> list[Run]:
        if self._runs is None:
            self._runs = self.rows.subject_runs()
        return self._runs

    @property
    def columns(self) -> Columns | None:
        """The integer columns, if these are the rows of a block."""
        if self._columns is None and isinstance(self.rows, Block):
            self._columns = Columns(self.rows)
        return self._columns

    def stretches_of(self, subject: bytes) -> list[tuple[int, int]]:
        """Where the rows of one subject are, ascending."""
        columns = self.columns
        if self._postings is None and columns is not None and self._searches < _SEARCHES_MAX:
            self._searches += 1
            return columns.rows_of(subject)
        if self._postings is None:
            self._postings = {}
            self._postings = self._post(len(self.runs))
        return self._postings.get(subject, [])

    def _post(self, newest: int) -> dict[bytes, list[tuple[int, int]]]:
        postings = self._postings if self._postings is not None else {}
        runs = self.runs
        for subject, start, stop in runs[len(runs) - newest :]:
            postings.setdefault(subject, []).append((start, stop))
        return postings

    def select(self, wanted: SubjectFilter) -> list[tuple[int, int]]:
        """Stretches of rows whose subject the filter takes, ascending."""
        if not wanted.patterns:
            return [(0, self.rows.rows)]
        if len(wanted.literals) == 1:
            return self.stretches_of(wanted.literals[0])
        runs = self.runs
        done, found = self._selections.get(wanted.patterns, (0, []))
        if done < len(runs):
            for subject, start, stop in runs[done:]:
                if not wanted(subject):
                    continue
                if found and found[-1][1] == start:
                    found[-1] = (found[-1][0], stop)
                else:
                    found.append((start, stop))
            if len(self._selections) >= _SELECTIONS_MAX:
                self._selections.clear()
            self._selections[wanted.patterns] = (len(runs), found)
        return found


class BlockCache:
    """Loaded blocks, least recently used first out. One may serve all streams of a node."""

    __slots__ = ("_bytes", "_max_bytes", "_views")

    def __init__(self, max_bytes: int = CACHE_BYTES_MAX) -> None:
        self._views: OrderedDict[tuple[int, int], View] = OrderedDict()
        self._bytes = 0
        self._max_bytes = max_bytes

    def get(self, group: int, first_seq: int) -> View | None:
        view = self._views.get((group, first_seq))
        if view is not None:
            self._views.move_to_end((group, first_seq))
        return view

    def put(self, group: int, first_seq: int, view: View) -> None:
        self.discard(group, first_seq)
        self._views[(group, first_seq)] = view
        self._bytes += _weight(view)
        while self._bytes > self._max_bytes and len(self._views) > 1:
            _, oldest = self._views.popitem(last=False)
            self._bytes -= _weight(oldest)

    def discard(self, group: int, first_seq: int) -> None:
        view = self._views.pop((group, first_seq), None)
        if view is not None:
            self._bytes -= _weight(view)

    def discard_group(self, group: int) -> None:
        for known, first_seq in list(self._views):
            if known == group:
                self.discard(known, first_seq)


def _weight(view: View) -> int:
    rows = view.rows
    return 2 * rows.nbytes if isinstance(rows, Block) else 0  # twice: runs and stretches grow on it


@dataclass(slots=True)
class Segments:
    """Ascending segments without overlap; the last one may still grow (`tail`)."""

    files: BlockFiles
    cache: BlockCache
    all: list[Segment] = field(default_factory=list)
    tail: Segment | None = None  # the last of `all`, while it grows
    floor: int = 1  # the stream's first sequence: rows below are gone, whatever `deleted` says
    builder: BlockBuilder = field(default_factory=BlockBuilder)
    unwritten_bytes: int = 0  # of sealed segments
    gone: list[int] = field(default_factory=list)  # written once, to be deleted at the checkpoint
    spent: list[Subjects] = field(default_factory=list)  # freeing them takes time, see persistence
    _starts: list[int] = field(default_factory=list)

    def at(self, seq: int) -> int:
        """Position of the segment whose range holds `seq`; -1 when it is below the first."""
        return bisect_right(self._starts, seq) - 1

    def from_seq(self, seq: int) -> Iterator[Segment]:
        """Segments that may hold rows at or above `seq`."""
        for position in range(max(self.at(seq), 0), len(self.all)):
            yield self.all[position]

    def growing(self, next_seq: int) -> Segment:
        """The segment that takes the row `next_seq`."""
        if self.tail is None:
            self.builder = BlockBuilder(next_seq)
            self.tail = Segment(next_seq, view=View(self.builder))
            self.add(self.tail)
        return self.tail

    def add(self, segment: Segment) -> None:
        self.all.append(segment)
        self._starts.append(segment.first_seq)

    def seal_if_full(self) -> None:
        if self.builder.rows >= SEAL_ROWS or self.builder.nbytes >= SEAL_BYTES:
            self.seal()

    def seal(self) -> None:
        """The tail becomes a block of its own. It is queued in memory for the next checkpoint."""
        segment = self.tail
        if segment is None:
            return
        raw = self.builder.build()
        self.tail = None
        segment.nbytes = len(raw)
        segment.written = False
        segment.view = View(Block(raw, verify=False))
        segment.subjects = segment.hashes = segment.summary = None
        self.unwritten_bytes += segment.nbytes

    def view(self, segment: Segment) -> View:
        """Its rows, read from the files if need be. Raises BlockDamaged."""
        if segment.view is not None:
            return segment.view
        view = self.cache.get(self.files.group, segment.first_seq)
        if view is None:
            raw = self.files.get(BLOCK, segment.first_seq)
            if raw is None:
                raise BlockDamaged(f"the block from sequence {segment.first_seq} on is missing")
            view = View(Block(raw))
            self.cache.put(self.files.group, segment.first_seq, view)
        return view

    def subjects(self, segment: Segment) -> Subjects:
        """Subjects of all its rows, gone ones included."""
        if segment.subjects is not None:
            return segment.subjects
        if segment.view is not None:
            subjects = segment.view.rows.subject_summary()
            if segment is not self.tail:
                segment.subjects = subjects
            return subjects
        raw = self.files.get(SUMMARY, segment.first_seq)
        if raw is None:
            raise BlockDamaged(f"the summary of sequence {segment.first_seq} is missing")
        return msgspec.msgpack.decode(raw, type=SegmentSummary).subjects

    def may_hold(self, segment: Segment, wanted: SubjectFilter) -> bool:
        """False only when no row of the segment can match."""
        if not wanted.patterns or segment is self.tail:
            return True
        if wanted.literals:
            return any(self.holds(segment, subject) for subject in wanted.literals)
        return wanted.any_of(self.subjects(segment))

    def holds(self, segment: Segment, subject: bytes) -> bool:
        """False only when no row of the segment has the subject."""
        if segment.subjects is not None:
            return subject in segment.subjects
        return segment.hashes is None or among_hashes(segment.hashes, subject)

    def replace_rows(self, segment: Segment, raw: bytes) -> None:
        """The block was rewritten, with the same rows (secure erase)."""
        block = Block(raw, verify=False)
        if segment is self.tail:
            self.builder = BlockBuilder(segment.first_seq)
            self.builder.append_block(block)
            segment.view = View(self.builder)
            segment.written = False
            return
        self.cache.discard(self.files.group, segment.first_seq)
        if segment.view is None:
            self.unwritten_bytes += len(raw)
        segment.view = View(block)
        segment.summary = None
        segment.written = False

    def shrink(self, segment: Segment, raw: bytes) -> None:
        """The block of a sealed segment was rewritten with nothing but its stored rows."""
        block = Block(raw, verify=False)
        if segment.view is not None:
            self.unwritten_bytes -= segment.nbytes
        self.unwritten_bytes += block.nbytes
        self.cache.discard(self.files.group, segment.first_seq)
        segment.view = View(block)
        segment.subjects, segment.hashes = block.subject_summary(), None
        segment.rows = block.rows
        segment.last_seq = block.last_seq
        segment.nbytes = block.nbytes
        segment.max_time = block.max_time
        segment.deleted = segment.summary = None
        segment.written = segment.deletes_written = False

    def discard(self, position: int) -> None:
        """Nothing in the segment is stored any more."""
        segment = self.all[position]
        if segment is self.tail:
            self.tail = None
        elif segment.view is not None:
            self.unwritten_bytes -= segment.nbytes
        self.cache.discard(self.files.group, segment.first_seq)
        self.gone.append(segment.first_seq)
        segment.view = None
        del self.all[position]
        del self._starts[position]

    def discard_front(self, count: int) -> None:
        """As `discard` for the first `count` segments, in one go."""
        kept, starts = self.all[count:], self._starts[count:]
        del self.all[count:], self._starts[count:]
        self.clear()
        self.all, self._starts = kept, starts

    def clear(self) -> None:
        for position in range(len(self.all) - 1, -1, -1):
            self.discard(position)
