"""A received block as numpy views over its bytes, checked once, without a loop over messages.

Owns: the reader's side of the block format, for bytes that came over the network.
May not touch: sockets. numpy is imported when the first block arrives, not before.
Spec: broker/store/block/block_format.py describes the format, projection.py what may be missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isal.isal_zlib import crc32

from broker.scan.projection import NO_DATA, NO_HEADERS, NO_SUBJECTS, NO_TIMES, NOTHING_ELSE
from broker.store.block.block_format import (
    CRC_FROM,
    HAS_SEQS,
    HEADER,
    MAGIC,
    VERSION,
    BlockDamaged,
    padded,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Section:
    """A column of texts: the offsets of its ends and of its bytes in the block."""

    ends: NDArray[Any]  # int32, count + 1, the first is 0
    ends_at: int
    bytes_at: int
    size: int


@dataclass(frozen=True, slots=True)
class BlockColumns:
    raw: Bytes
    count: int
    first_seq: int
    last_seq: int
    seqs: NDArray[Any] | None  # int64; None when the sequences are contiguous
    times: NDArray[Any] | None  # int64 nanoseconds; None: not sent, as are sections
    subjects: Section | None
    headers: Section | None
    data: Section | None

    def rows_between(self, low: int, high: int) -> tuple[int, int]:
        """The row numbers [start, stop) of the sequences low..high, both included."""
        if self.seqs is None:
            start = min(max(low - self.first_seq, 0), self.count)
            stop = min(max(high + 1 - self.first_seq, start), self.count)
            return start, stop
        start, stop = self.seqs.searchsorted([low, high + 1])
        return int(start), max(int(start), int(stop))


def read_columns(raw: Bytes, *, verify: bool) -> BlockColumns:
    """Check everything that could make Arrow read outside the block; `verify` adds the checksum.

    Raises BlockDamaged."""
    import numpy as np

    if len(raw) < HEADER.size:
        raise BlockDamaged("shorter than a header")
    (
        magic,
        version,
        flags,
        count,
        crc,
        first_seq,
        subjects,
        headers,
        data,
        total,
        _,
        _,
        last_seq,
    ) = HEADER.unpack_from(raw)
    if magic != MAGIC or version != VERSION or flags & ~(HAS_SEQS | NOTHING_ELSE):
        raise BlockDamaged("not a block of this version")
    lengths = (subjects, headers, data)
    layout = _Layout(flags, count, lengths)
    if not layout.size == total == len(raw):
        raise BlockDamaged("the lengths contradict each other")
    if verify and crc32(memoryview(raw)[CRC_FROM:]) != crc:
        raise BlockDamaged("the checksum differs")
    if not count or not first_seq:
        raise BlockDamaged("no rows, or rows without sequences")
    seqs = None if layout.seqs_at is None else np.frombuffer(raw, "<i8", count, layout.seqs_at)
    times = None if layout.times_at is None else np.frombuffer(raw, "<i8", count, layout.times_at)
    sections = [
        None
        if where is None
        else Section(np.frombuffer(raw, "<i4", count + 1, where), where, start, length)
        for where, start, length in zip(layout.ends_at, layout.bytes_at, lengths, strict=True)
    ]
    columns = BlockColumns(raw, count, first_seq, last_seq, seqs, times, *sections)
    _check(columns)
    return columns


class _Layout:
    """Where each column of a block begins; None for one that was not sent."""

    def __init__(self, flags: int, count: int, lengths: tuple[int, int, int]) -> None:
        self.size = HEADER.size
        self.seqs_at = self._next(8 * count) if flags & HAS_SEQS else None
        self.times_at = self._next(8 * count) if not flags & NO_TIMES else None
        sent = [not flags & flag for flag in (NO_SUBJECTS, NO_HEADERS, NO_DATA)]
        ends_size = padded(4 * (count + 1))
        self.ends_at = [self._next(ends_size) if there else None for there in sent]
        self.bytes_at = [self._next(padded(length)) for length in lengths]
        if any(length and not there for length, there in zip(lengths, sent, strict=True)):
            raise BlockDamaged("a column without ends has text")

    def _next(self, size: int) -> int:
        at = self.size
        self.size += size
        return at


def _check(columns: BlockColumns) -> None:
    for section in (columns.subjects, columns.headers, columns.data):
        if section is None:
            continue
        ends = section.ends
        if ends[0] != 0 or ends[-1] != section.size or (ends[1:] < ends[:-1]).any():
            raise BlockDamaged("the ends of a column are out of order")
    seqs = columns.seqs
    if seqs is None:
        if columns.last_seq != columns.first_seq + columns.count - 1:
            raise BlockDamaged("the first and last sequence contradict the rows")
    elif (
        seqs[0] != columns.first_seq
        or seqs[-1] != columns.last_seq
        or (seqs[1:] <= seqs[:-1]).any()
    ):
        raise BlockDamaged("the sequence column is out of order")
