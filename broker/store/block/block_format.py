"""The block format: messages in columns, one layout for log entries, stored data and scans.

Owns: block format version 1, which is specified here, and reading it. This twin is the
specification of _block.pyx.
May not touch: files, clocks, what a message means.
Spec, little-endian, every section 8-byte aligned and padded with zeros:

   0 u32 magic "JRB1" | 4 u16 version = 1 | 6 u16 flags (bit 0: has a sequence column)
   8 u32 count        | 12 u32 crc32 over the bytes from 16 to the end
  16 u64 first_seq (0: not yet assigned)
  24 u32 subjects_len | 28 u32 headers_len | 32 u32 data_len | 36 u32 total_len
  40 i64 min_time     | 48 i64 max_time    | 56 u64 last_seq
  64 [seqs i64 * count, only when the sequences are not contiguous]
     times i64 * count
     subject_ends, header_ends, data_ends: i32 * (count + 1) each, Arrow offsets (the first is 0)
     subjects | headers (raw NATS/1.0 blocks, or nothing) | data

A block without rows has last_seq = first_seq - 1 (or 0); one not yet assigned has 0 in both."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, final

from isal.isal_zlib import crc32

MAGIC: Final = 0x3142524A
VERSION: Final = 1
HAS_SEQS: Final = 1
HEADER: Final = struct.Struct("<IHHIIQIIIIqqQ")
CRC_AT: Final = 12
CRC_FROM: Final = 16
SECTION_BYTES_MAX: Final = 2**31 - 1  # the ends are signed 32-bit, as in Arrow
TOTAL_BYTES_MAX: Final = 2**32 - 1
SEQ_MAX: Final = 2**63 - 2  # so that the next sequence still fits into 63 bits
TIME_MAX: Final = 2**63 - 1


@dataclass(eq=False)
class BlockDamaged(Exception):
    """These bytes are not a valid block. The data must be fetched from a peer, not repaired."""

    reason: str

    def __str__(self) -> str:
        return f"damaged block: {self.reason}"


class Rows(ABC):
    """Messages by row number: the common interface of Block and BlockBuilder."""

    __slots__ = ()
    rows: int
    first_seq: int  # 0: sequences not yet assigned
    last_seq: int

    @abstractmethod
    def subject(self, i: int) -> bytes: ...
    @abstractmethod
    def headers(self, i: int) -> bytes: ...
    @abstractmethod
    def data(self, i: int) -> bytes: ...
    @abstractmethod
    def time(self, i: int) -> int: ...
    @abstractmethod
    def seq(self, i: int) -> int: ...

    def row_size(self, i: int) -> int:
        """Header and data bytes."""
        return len(self.headers(i)) + len(self.data(i))

    @property
    def max_row_size(self) -> int:
        return max(map(self.row_size, range(self.rows)), default=0)

    def first_at_or_after(self, seq: int) -> int:
        """The first row with a sequence of at least `seq`; `rows` if there is none."""
        return bisect_left(range(self.rows), seq, key=self.seq) if self.first_seq else self.rows

    def index_of(self, seq: int) -> int:
        """The row of that sequence, -1 if the block does not have it."""
        i = self.first_at_or_after(seq)
        return i if i < self.rows and self.seq(i) == seq else -1

    def subject_runs(self) -> list[tuple[bytes, int, int]]:
        """(subject, first row, last row + 1) for each run of equal subjects."""
        found: list[tuple[bytes, int, int]] = []
        start = 0
        for i in range(1, self.rows + 1):
            if i == self.rows or self.subject(i) != self.subject(start):
                found.append((self.subject(start), start, i))
                start = i
        return found

    def subject_summary(self) -> dict[bytes, list[int]]:
        """Subject -> [count, first row, last row], in order of first appearance."""
        summary: dict[bytes, list[int]] = {}
        for subject, start, stop in self.subject_runs():
            entry = summary.setdefault(subject, [0, start, start])
            entry[0] += stop - start
            entry[2] = stop - 1
        return summary

    def rows_of(self, subject: bytes) -> list[tuple[int, int]]:
        """(first row, last row + 1) for each run of this subject."""
        return [(start, stop) for found, start, stop in self.subject_runs() if found == subject]

    def rows_matching(self, patterns: Sequence[bytes]) -> list[tuple[int, int]]:
        """(first row, last row + 1) for each run of rows whose subjects one of these patterns
        matches, with the wildcards of NATS."""
        split = [pattern.split(b".") for pattern in patterns]
        found: list[tuple[int, int]] = []
        for subject, start, stop in self.subject_runs():
            tokens = subject.split(b".")
            if not any(_fits(pattern, tokens) for pattern in split):
                continue
            if found and found[-1][1] == start:
                found[-1] = (found[-1][0], stop)
            else:
                found.append((start, stop))
        return found

    def seqs_of(self, stretches: Iterable[tuple[int, int]]) -> array[int]:
        """The sequences of the rows in these ranges (first row, last row + 1)."""
        found = array("Q")
        for begin, end in stretches:
            found.extend(map(self.seq, range(begin, end)))
        return found

    def any_nats_header(self) -> bool:
        """Whether some header block has a line that starts with "Nats-"."""
        blocks = map(self.headers, range(self.rows))
        return any(raw.startswith(b"Nats-") or b"\nNats-" in raw for raw in blocks)

    def _check(self, i: int) -> None:
        if not 0 <= i < self.rows:
            raise IndexError(f"row {i} of {self.rows}")


def _fits(pattern: list[bytes], subject: list[bytes]) -> bool:
    for position, token in enumerate(pattern):
        if token == b">" and position == len(pattern) - 1:
            return position < len(subject)
        if position >= len(subject) or token not in (b"*", subject[position]):
            return False
    return len(subject) == len(pattern)


def padded(size: int) -> int:
    return (size + 7) & ~7


def block_size(count: int, *, has_seqs: bool, subjects: int, headers: int, data: int) -> int:
    columns = 8 * count * (2 if has_seqs else 1) + 3 * padded(4 * (count + 1))
    return HEADER.size + columns + padded(subjects) + padded(headers) + padded(data)


@final
class Block(Rows):
    """A read-only view. After the constructor has accepted the bytes, reads need no checks.

    The constructor always checks layout, ends and sequences; `verify` adds the checksum."""

    __slots__ = (
        "_blobs",
        "_ends",
        "_seqs",
        "_times",
        "count",
        "data_len",
        "first_seq",
        "headers_len",
        "last_seq",
        "max_time",
        "min_time",
        "nbytes",
        "raw",
        "rows",
        "subjects_len",
    )

    def __init__(self, raw: bytes | memoryview, *, verify: bool = True) -> None:
        if not isinstance(raw, bytes) and not memoryview(raw).readonly:
            raw = bytes(raw)  # the bytes must not change after the checks
        self.raw = raw
        view = memoryview(raw).cast("B")
        flags, crc = self._read_header(view)
        if verify and crc32(view[CRC_FROM:]) != crc:
            raise BlockDamaged("the checksum differs")
        count = self.count
        at = HEADER.size
        self._seqs: tuple[int, ...] | None = None
        if flags & HAS_SEQS:
            self._seqs = struct.unpack_from(f"<{count}q", view, at)
            at += 8 * count
        self._times: tuple[int, ...] = struct.unpack_from(f"<{count}q", view, at)
        at += 8 * count
        self._ends: list[tuple[int, ...]] = []
        for _ in range(3):
            self._ends.append(struct.unpack_from(f"<{count + 1}i", view, at))
            at += padded(4 * (count + 1))
        self._blobs: list[memoryview] = []
        for size in (self.subjects_len, self.headers_len, self.data_len):
            self._blobs.append(view[at : at + size])
            at += padded(size)
        self._check_columns()

    def subject(self, i: int) -> bytes:
        return self._slice(0, i)

    def headers(self, i: int) -> bytes:
        return self._slice(1, i)

    def data(self, i: int) -> bytes:
        return self._slice(2, i)

    def time(self, i: int) -> int:
        self._check(i)
        return self._times[i]

    def seq(self, i: int) -> int:
        self._check(i)
        if self._seqs is not None:
            return self._seqs[i]
        return self.first_seq + i if self.first_seq else 0

    def _slice(self, column: int, i: int) -> bytes:
        self._check(i)
        ends = self._ends[column]
        return bytes(self._blobs[column][ends[i] : ends[i + 1]])

    def _read_header(self, view: memoryview) -> tuple[int, int]:
        if len(view) < HEADER.size:
            raise BlockDamaged("shorter than a header")
        fields = HEADER.unpack_from(view)
        magic, version, flags, self.count, crc, self.first_seq = fields[:6]
        self.subjects_len, self.headers_len, self.data_len, self.nbytes = fields[6:10]
        self.min_time, self.max_time, self.last_seq = fields[10:]
        self.rows = self.count
        if magic != MAGIC:
            raise BlockDamaged("not a block")
        if version != VERSION:
            raise BlockDamaged(f"format version {version}")
        if flags & ~HAS_SEQS:
            raise BlockDamaged(f"unknown flags {flags:#x}")
        sections = {
            "subjects": self.subjects_len,
            "headers": self.headers_len,
            "data": self.data_len,
        }
        size = block_size(self.count, has_seqs=bool(flags & HAS_SEQS), **sections)
        if not size == self.nbytes == len(view) or max(sections.values()) > SECTION_BYTES_MAX:
            raise BlockDamaged("the lengths contradict each other")
        return flags, crc

    def _check_columns(self) -> None:
        for ends, blob in zip(self._ends, self._blobs, strict=True):
            if ends[0] != 0 or ends[-1] != len(blob) or list(ends) != sorted(ends):
                raise BlockDamaged("the ends of a column are out of order")
        if self.first_seq + self.count - 1 > SEQ_MAX:
            raise BlockDamaged("the first and last sequence contradict the rows")
        expected_last = self.first_seq + self.count - 1 if self.first_seq else 0
        if self._seqs:
            expected_last = self._seqs[-1]
            if not 0 < self.first_seq == self._seqs[0]:
                raise BlockDamaged("the sequence column does not begin at the first sequence")
            if any(after <= before for before, after in pairwise(self._seqs)):
                raise BlockDamaged("the sequences do not increase")
        if self.last_seq != expected_last or expected_last > SEQ_MAX:
            raise BlockDamaged("the first and last sequence contradict the rows")
