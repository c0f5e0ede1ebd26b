"""Segments: ranges of a stream's sequences that are stored as one block each.

Owns: the ordered list of segments, the growing last one, sealing, and the cache of loaded blocks.
May not touch: the counters of the stream, the subject index, when blocks are written.
Spec: docs/ARCHITECTURE.md, "Storage". A sealed block is about 1 MB and stays in memory
until a checkpoint has written it."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from struct import Struct as Packing
from typing import Final

import msgspec
from pyroaring import BitMap64

from broker.store.block.block_format import CRC_AT, CRC_FROM
from broker.store.block.codec import Block, BlockBuilder, BlockDamaged, Rows
from broker.store.block.columns import Columns
from broker.store.block.packing import unpack
from broker.store.index import among_hashes, subject_hashes
from broker.store.index.subject_filter import SubjectFilter
from broker.store.state_keys import BLOCK, SUMMARY, BlockFiles, BlockReader

SEAL_BYTES: Final = 1 << 20
SEAL_ROWS: Final = 8192
SUBJECTS_KEPT_MAX: Final = 16  # segments whose subjects were read from disk
WHOLE_BYTES: Final = 3 << 18  # a block of this size is stored as it is, not appended to another
SUBJECTS_HELD_MAX: Final = 64  # of a segment; more are read from its summary when needed
CACHE_BYTES_MAX: Final = 48 << 20  # for all streams of a node together
_CRC: Final = Packing("<I")
_SEARCHES_MAX: Final = 32  # searches for single subjects before all subjects are listed
_MATCHED_MAX: Final = 16  # patterns that are compared with every row, without a list of subjects
_SELECTIONS_MAX: Final = 8  # filters with cached results per loaded block

Run = tuple[bytes, int, int]  # subject, first row, last row + 1


Subjects = dict[bytes, list[int]]  # subject -> [rows, first row, last row]


class SegmentSummary(msgspec.Struct, array_like=True, frozen=True):
    """What is known about a block without reading it."""

    last_seq: int
    rows: int
    nbytes: int
    max_time: int
    size: int  # of all its rows, as counted in the `bytes` of the stream
    subjects: Subjects  # here with distances from the first sequence instead of rows
    last_sizes: list[int]  # size of the last row of each subject; empty without trails
    deadlines: list[int] = []  # pairs of sequence and expiry time, see Deadlines


@dataclass(slots=True)
class Segment:
    """Invariant: a row is stored iff its sequence is not below the stream's first sequence and
    not in `deleted`; `live` and `live_size` count exactly the stored rows."""

    first_seq: int  # start of its range; does not change when a compaction drops the first row
    last_seq: int = 0
    rows: int = 0
    live: int = 0
    live_size: int = 0
    nbytes: int = 0
    max_time: int = 0
    deleted: BitMap64 | None = None
    subjects: Subjects | None = None  # None: too many to keep in memory, or still growing
    hashes: bytes | None = None  # of its subjects, if they are too many to keep in memory
    view: View | None = None  # set until the block is written, and for the growing segment
    summary: bytes | None = None  # encoded ahead of the checkpoint that writes it
    packed: bytes | None = None  # its compressed block, likewise
    written: bool = False
    deletes_written: bool = True

    def set_subjects(self, subjects: Subjects) -> None:
        """Keep the subjects of a written block, or only their hashes if there are many."""
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
    """The rows of one segment, with cached results of earlier reads."""

    __slots__ = ("_columns", "_postings", "_runs", "_searches", "_selections", "rows")

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self._columns: Columns | None = None
        self._searches = 0
        self._runs: list[Run] | None = None
        self._postings: dict[bytes, list[tuple[int, int]]] | None = None
        self._selections: dict[tuple[bytes, ...], tuple[int, list[tuple[int, int]]]] = {}

    def grown(self, runs: Sequence[Run], offset: int) -> None:
        """Rows were appended at `offset`: update the cached results."""
        if self._runs is not None:
            self._runs += [(name, start + offset, stop + offset) for name, start, stop in runs]
            self._postings = None if self._postings is None else self._post(len(runs))

    @property
    def tracked(self) -> bool:
        """Whether `grown` must be called when rows are appended."""
        return self._runs is not None

    @property
    def runs(self) -> list[Run]:
        if self._runs is None:
            self._runs = self.rows.subject_runs()
        return self._runs

    @property
    def columns(self) -> Columns | None:
        """The integer columns of a block; None for rows that are still growing."""
        if self._columns is None and isinstance(self.rows, Block):
            self._columns = Columns(self.rows)
        return self._columns

    def stretches_of(self, subject: bytes) -> list[tuple[int, int]]:
        """Ranges of rows with this subject, ascending."""
        columns = self.columns
        if self._postings is None and columns is not None and self._searches < _SEARCHES_MAX:
            self._searches += 1
            return self.rows.rows_of(subject)
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
        """Ranges of rows whose subject the filter matches, ascending."""
        if not wanted.patterns:
            return [(0, self.rows.rows)]
        if len(wanted.literals) == 1:
            return self.stretches_of(wanted.literals[0])
        done, found = self._selections.get(wanted.patterns, (0, []))
        if isinstance(self.rows, Block) and len(wanted.patterns) <= _MATCHED_MAX:
            if not done:
                found = self.rows.rows_matching(wanted.patterns)
                self._keep(wanted, self.rows.rows, found)
            return found
        runs = self.runs
        if done < len(runs):
            for subject, start, stop in runs[done:]:
                if not wanted(subject):
                    continue
                if found and found[-1][1] == start:
                    found[-1] = (found[-1][0], stop)
                else:
                    found.append((start, stop))
            self._keep(wanted, len(runs), found)
        return found

    def _keep(self, wanted: SubjectFilter, done: int, found: list[tuple[int, int]]) -> None:
        if len(self._selections) >= _SELECTIONS_MAX:
            self._selections.clear()
        self._selections[wanted.patterns] = (done, found)


class BlockCache:
    """LRU cache of loaded blocks; one cache serves all streams of a node."""

    __slots__ = (
        "_bytes",
        "_max_bytes",
        "_subjects",
        "_unwritten",
        "_views",
        "on_damage",
        "unwritten_bytes",
    )

    def __init__(self, max_bytes: int = CACHE_BYTES_MAX) -> None:
        self.unwritten_bytes = 0  # of all streams, blocks that are in memory only
        self._unwritten: dict[int, int] = {}  # the same by group
        self._views: OrderedDict[tuple[int, int], View] = OrderedDict()
        self._bytes = 0
        self._max_bytes = max_bytes
        # Subjects read from summaries, for searches in steps; at most two megabytes each.
        self._subjects: OrderedDict[tuple[int, int], Subjects] = OrderedDict()
        # Called with the group of a block that cannot be read, before the error is raised.
        self.on_damage: Callable[[int, Exception], None] = lambda _group, _error: None

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

    def subjects_of(self, group: int, first_seq: int) -> Subjects | None:
        found = self._subjects.get((group, first_seq))
        if found is not None:
            self._subjects.move_to_end((group, first_seq))
        return found

    def keep_subjects(self, group: int, first_seq: int, subjects: Subjects) -> None:
        self._subjects[(group, first_seq)] = subjects
        if len(self._subjects) > SUBJECTS_KEPT_MAX:
            self._subjects.popitem(last=False)

    def discard(self, group: int, first_seq: int) -> None:
        self._subjects.pop((group, first_seq), None)
        view = self._views.pop((group, first_seq), None)
        if view is not None:
            self._bytes -= _weight(view)

    def count_unwritten(self, group: int, size: int) -> None:
        """The group has `size` bytes that are not written."""
        self.unwritten_bytes += size - self._unwritten.get(group, 0)
        self._unwritten[group] = size

    def discard_group(self, group: int) -> None:
        self.unwritten_bytes -= self._unwritten.pop(group, 0)
        for known, first_seq in [*self._views, *self._subjects]:
            if known == group:
                self.discard(known, first_seq)


def _get(files: BlockReader, first_seq: int) -> bytes | None:
    try:
        stored = files.get(BLOCK, first_seq)
        return None if stored is None else unpack(stored)
    except Exception as error:  # rocksdict raises plain Exception, and isal one of its own
        raise BlockDamaged(f"the block from sequence {first_seq} on: {error}") from error


def _weight(view: View) -> int:
    rows = view.rows
    # Twice the block: the cached results of a View can become as large as the block itself.
    return 2 * rows.nbytes if isinstance(rows, Block) else 0


@dataclass(slots=True)
class Segments:
    """Segments in ascending order, without overlap. The last one may still grow (`tail`)."""

    files: BlockFiles
    cache: BlockCache
    all: list[Segment] = field(default_factory=list)
    tail: Segment | None = None  # the last of `all`, while it is growing
    floor: int = 1  # the stream's first sequence: rows below it are removed
    builder: BlockBuilder = field(default_factory=BlockBuilder)
    _unwritten_bytes: int = 0
    packs: Callable[[], bool] = lambda: False  # whether sealed blocks are compressed on disk
    discarded: list[int] = field(default_factory=list)  # first sequences to delete from disk
    # Subjects that are no longer needed. Freeing a large dict takes milliseconds, so
    # persistence.work_ahead frees one at a time.
    spent: list[Subjects] = field(default_factory=list)
    _starts: list[int] = field(default_factory=list)

    @property
    def unwritten_bytes(self) -> int:
        """Of sealed segments."""
        return self._unwritten_bytes

    @unwritten_bytes.setter
    def unwritten_bytes(self, size: int) -> None:
        self._unwritten_bytes = size
        self.cache.count_unwritten(self.files.group, size)

    def at(self, seq: int) -> int:
        """Position of the segment whose range includes `seq`; -1 if it is below the first one."""
        return bisect_right(self._starts, seq) - 1

    def from_seq(self, seq: int) -> Iterator[Segment]:
        """Segments that may contain rows at or above `seq`."""
        for position in range(max(self.at(seq), 0), len(self.all)):
            yield self.all[position]

    def first_from(self, seq: int) -> Segment | None:
        """The first segment that may contain a row at or above `seq`."""
        for segment in self.from_seq(seq):
            if segment.last_seq >= seq or segment is self.tail:
                return segment
        return None

    def last_up_to(self, seq: int) -> Segment | None:
        """The last segment that may contain a row at or below `seq`."""
        position = self.at(seq)
        return self.all[position] if position >= 0 else None

    def growing(self, next_seq: int) -> Segment:
        """The segment to which the row `next_seq` is appended."""
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
        """Turn the tail into a block; it stays in memory until the next checkpoint."""
        segment = self.tail
        if segment is None:
            return
        raw = self.builder.build()
        self.tail = None
        segment.nbytes = len(raw)
        segment.written = False
        segment.view = View(Block(raw, verify=False))
        segment.subjects = segment.hashes = segment.summary = segment.packed = None
        self.unwritten_bytes += segment.nbytes

    def add_whole(self, raw: bytes) -> Segment:
        """Add a sealed block after all others; only while no segment is growing."""
        assert self.tail is None
        block = Block(raw, verify=False)
        segment = Segment(block.first_seq, nbytes=block.nbytes, view=View(block))
        self.add(segment)
        self.unwritten_bytes += segment.nbytes
        return segment

    def view(self, segment: Segment) -> View:
        """Its rows, read from disk if necessary. Raises BlockDamaged."""
        if segment.view is not None:
            return segment.view
        view = self.cache.get(self.files.group, segment.first_seq)
        if view is None:
            view = View(self.read_block(segment.first_seq))
            self.cache.put(self.files.group, segment.first_seq, view)
        return view

    def borrow(self, segment: Segment, memory: Callable[[int], memoryview]) -> Block | None:
        """Read the block into memory of the caller, bypassing the cache: for a caller that reads
        many blocks once. None if it is already in memory, or not stored as plain bytes: use `view`.
        Raises BlockDamaged, after reporting the damage."""
        if self.in_memory(segment) or self.files.size_in_file(segment.first_seq) != segment.nbytes:
            return None
        raw = memory(segment.nbytes)
        try:
            found = self.files.read_into(segment.first_seq, raw, checksum_from=CRC_FROM)
            if found != _CRC.unpack_from(raw, CRC_AT)[0]:
                raise BlockDamaged(f"the checksum of the block from {segment.first_seq} on differs")
            return Block(raw.toreadonly(), verify=False)
        except BlockDamaged as damage:
            self.cache.on_damage(self.files.group, damage)
            raise

    def in_memory(self, segment: Segment) -> bool:
        """Whether its rows are available without reading a file."""
        cached = self.cache.get(self.files.group, segment.first_seq)
        return segment.view is not None or cached is not None

    def read_block(self, first_seq: int) -> Block:
        """A block on disk. Raises BlockDamaged, after reporting the damage."""
        return Block(self.read_raw(self.files, first_seq), verify=False)

    def try_block(self, first_seq: int) -> int | None:
        """The size of a block on disk, or None if it cannot be read or its checksum is wrong. May
        run on any thread; does not report damage."""
        try:
            raw = _get(self.files, first_seq)
            return None if raw is None else Block(raw).nbytes
        except BlockDamaged:
            return None

    def read_raw(self, files: BlockReader, first_seq: int) -> bytes:
        """The block as bytes, from these files, with a verified checksum."""
        try:
            raw = _get(files, first_seq)
            if raw is None:
                raise BlockDamaged(f"the block from sequence {first_seq} on is missing")
            Block(raw)
        except BlockDamaged as damage:
            self.cache.on_damage(self.files.group, damage)
            raise
        return raw

    def subjects(self, segment: Segment) -> Subjects:
        """Subjects of all its rows, including removed ones."""
        if segment.subjects is not None:
            return segment.subjects
        if segment.view is not None:
            subjects = segment.view.rows.subject_summary()
            if segment is not self.tail:
                segment.subjects = subjects
            return subjects
        read = self.cache.subjects_of(self.files.group, segment.first_seq)
        if read is None:
            read = self._read_summary(segment.first_seq).subjects
            self.cache.keep_subjects(self.files.group, segment.first_seq, read)
        return read

    def _read_summary(self, first_seq: int) -> SegmentSummary:
        """Raises BlockDamaged, after reporting the damage."""
        try:
            raw = self.files.get(SUMMARY, first_seq)
            if raw is None:
                raise BlockDamaged(f"the summary of sequence {first_seq} is missing")
        except BlockDamaged as damage:
            self.cache.on_damage(self.files.group, damage)
            raise
        return msgspec.msgpack.decode(raw, type=SegmentSummary)

    def may_hold(self, segment: Segment, wanted: SubjectFilter) -> bool:
        """False only if no row of the segment can match."""
        if not wanted.patterns or segment is self.tail:
            return True
        if wanted.literals:
            if segment.subjects is not None:
                return not segment.subjects.keys().isdisjoint(wanted.literals)
            return any(self.holds(segment, subject) for subject in wanted.literals)
        return wanted.any_of(self.subjects(segment))

    def holds(self, segment: Segment, subject: bytes) -> bool:
        """False only if no row of the segment has the subject."""
        if segment.subjects is not None:
            return subject in segment.subjects
        return segment.hashes is None or among_hashes(segment.hashes, subject)

    def replace_rows(self, segment: Segment, raw: bytes) -> None:
        """Replace the block by a rewritten one with the same rows (secure erase)."""
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
        segment.summary = segment.packed = None
        segment.written = False

    def shrink(self, segment: Segment, raw: bytes) -> None:
        """Replace the block of a sealed segment by one with only its stored rows (compaction)."""
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
        segment.deleted = segment.summary = segment.packed = None
        segment.written = segment.deletes_written = False

    def discard(self, position: int) -> None:
        """Drop a segment in which no row is stored."""
        segment = self.all[position]
        if segment is self.tail:
            self.tail = None
        elif segment.view is not None:
            self.unwritten_bytes -= segment.nbytes
        self.cache.discard(self.files.group, segment.first_seq)
        self.discarded.append(segment.first_seq)
        segment.view = None
        del self.all[position]
        del self._starts[position]

    def discard_front(self, count: int) -> None:
        """Like `discard`, for the first `count` segments, in linear time."""
        kept, starts = self.all[count:], self._starts[count:]
        del self.all[count:], self._starts[count:]
        self.clear()
        self.all, self._starts = kept, starts

    def clear(self) -> None:
        for position in range(len(self.all) - 1, -1, -1):
            self.discard(position)
