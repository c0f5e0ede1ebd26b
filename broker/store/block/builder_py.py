"""The block builder: rows can be appended, read immediately, and built into the bytes of a block.

Owns: rows that are not sealed yet, and their numbering.
May not touch: files, clocks, what a message means.
Spec: the format is in block_format.py. This twin is the specification of _builder.pyx."""

from __future__ import annotations

import struct
from collections.abc import Set as AbstractSet
from typing import final

from isal.isal_zlib import crc32

from broker.store.block.block_format import (
    CRC_AT,
    CRC_FROM,
    HAS_SEQS,
    HEADER,
    MAGIC,
    SECTION_BYTES_MAX,
    SEQ_MAX,
    TIME_MAX,
    TOTAL_BYTES_MAX,
    VERSION,
    Block,
    Rows,
    block_size,
    padded,
)
from broker.wire.run_py import PubRun


@final
class BlockBuilder(Rows):
    """An append that fails changes nothing. Sequences only increase.

    A row appended without a sequence gets the next one. While `first_seq` is 0, rows have no
    sequences, and no row with a sequence may be appended after them."""

    __slots__ = ("_columns", "_lengths", "_seqs", "_times", "first_seq", "last_seq", "rows")

    def __init__(self, first_seq: int = 0) -> None:
        _check_seq(first_seq)
        self.first_seq = first_seq
        self.last_seq = max(first_seq - 1, 0)
        self._clear_rows()

    @property
    def nbytes(self) -> int:
        """The exact size of the result of build()."""
        subjects, headers, data = self._lengths
        has_seqs = self._seqs is not None
        return block_size(
            self.rows, has_seqs=has_seqs, subjects=subjects, headers=headers, data=data
        )

    def append(
        self, subject: bytes, headers: bytes, data: bytes, *, time_ns: int = 0, seq: int = 0
    ) -> None:
        self._check_room(1, len(subject), len(headers), len(data))
        if not -TIME_MAX - 1 <= time_ns <= TIME_MAX:
            raise OverflowError("a time needs more than 64 bits")
        self._check_next(seq, count=1)
        self._add(subject, headers, data, time_ns=time_ns, seq=seq)

    def append_run(self, run: PubRun, start: int, stop: int) -> None:
        """Rows of a publish run, with time 0 and without reply subjects (see ReplyColumn)."""
        run._check(start, stop)  # noqa: SLF001
        messages = run._messages[start:stop]  # noqa: SLF001
        sizes = [sum(len(message[column]) for message in messages) for column in (0, 2, 3)]
        self._check_room(len(messages), *sizes)
        self._check_next(0, count=len(messages))
        for subject, _, headers, data in messages:
            self._add(subject, headers, data, time_ns=0, seq=0)

    def append_block(
        self,
        block: Block,
        *,
        time_ns: int | None = None,
        first_seq: int | None = None,
        skip: AbstractSet[int] | None = None,
    ) -> None:
        """The rows of `block` whose numbers are not in `skip`.

        `time_ns` replaces their times. `first_seq` numbers them consecutively; without it they
        keep the block's sequences, or get the next ones if the block has none."""
        _check_seq(first_seq or 0)
        kept = [i for i in range(block.rows) if not skip or i not in skip]
        if time_ns is not None and not -TIME_MAX - 1 <= time_ns <= TIME_MAX:
            raise OverflowError("a time needs more than 64 bits")
        subjects = sum(len(block.subject(i)) for i in kept)
        headers = sum(len(block.headers(i)) for i in kept)
        data = sum(len(block.data(i)) for i in kept)
        self._check_room(len(kept), subjects, headers, data)
        if kept:
            stamped = first_seq is not None or not block.first_seq
            first = (first_seq or 0) if stamped else block.seq(kept[0])
            self._check_next(first, count=len(kept) if stamped else 1)
        for k, i in enumerate(kept):
            seq = block.seq(i) if first_seq is None else first_seq and first_seq + k
            stamp = block.time(i) if time_ns is None else time_ns
            self._add(block.subject(i), block.headers(i), block.data(i), time_ns=stamp, seq=seq)

    def build(self, *, seal: bool = True) -> bytes:
        """The block as bytes; the builder keeps its rows. Without `seal` the checksum is 0, for
        bytes that are protected otherwise (such as a Raft entry) and read with verify=False."""
        ends_size = 4 * (self.rows + 1)
        parts = [struct.pack(f"<{self.rows}q", *self._seqs)] if self._seqs is not None else []
        parts.append(struct.pack(f"<{self.rows}q", *self._times))
        for column in self._columns:
            ends = [0]
            for value in column:
                ends.append(ends[-1] + len(value))
            parts.append(struct.pack(f"<{self.rows + 1}i", *ends).ljust(padded(ends_size), b"\0"))
        for column, size in zip(self._columns, self._lengths, strict=True):
            parts.append(b"".join(column).ljust(padded(size), b"\0"))
        header = HEADER.pack(
            MAGIC,
            VERSION,
            0 if self._seqs is None else HAS_SEQS,
            self.rows,
            0,
            self.first_seq,
            *self._lengths,
            self.nbytes,
            min(self._times, default=0),
            max(self._times, default=0),
            self.last_seq,
        )
        raw = bytearray(b"".join((header, *parts)))
        if seal:
            struct.pack_into("<I", raw, CRC_AT, crc32(memoryview(raw)[CRC_FROM:]))
        return bytes(raw)

    def clear(self) -> None:
        """Drop the rows; the numbering continues after them."""
        if self.first_seq:
            self.first_seq = self.last_seq + 1
        self._clear_rows()

    def subject(self, i: int) -> bytes:
        self._check(i)
        return self._columns[0][i]

    def headers(self, i: int) -> bytes:
        self._check(i)
        return self._columns[1][i]

    def data(self, i: int) -> bytes:
        self._check(i)
        return self._columns[2][i]

    def time(self, i: int) -> int:
        self._check(i)
        return self._times[i]

    def seq(self, i: int) -> int:
        self._check(i)
        if self._seqs is not None:
            return self._seqs[i]
        return self.first_seq + i if self.first_seq else 0

    def _clear_rows(self) -> None:
        self.rows = 0
        self._columns: tuple[list[bytes], list[bytes], list[bytes]] = ([], [], [])
        self._lengths = [0, 0, 0]
        self._times: list[int] = []
        self._seqs: list[int] | None = None  # set once the sequences have a gap

    def _check_room(self, count: int, *added: int) -> None:
        lengths = [length + more for length, more in zip(self._lengths, added, strict=True)]
        # Includes a sequence column, because any later row may bring a gap.
        count += self.rows
        total = block_size(
            count, has_seqs=True, subjects=lengths[0], headers=lengths[1], data=lengths[2]
        )
        if max(lengths) > SECTION_BYTES_MAX or total > TOTAL_BYTES_MAX:
            raise OverflowError("a block cannot hold that many bytes")

    def _check_next(self, seq: int, *, count: int) -> None:
        """Raises if `count` rows from sequence `seq` on (0: the next one) cannot be appended."""
        _check_seq(seq)
        if seq == 0:
            seq = self.last_seq + 1 if self.first_seq else 0
        elif self.rows and not self.first_seq:
            raise ValueError("rows without a sequence come before this one")
        elif seq <= self.last_seq:
            raise ValueError(f"sequence {seq} after {self.last_seq}")
        if seq + count - 1 > SEQ_MAX:
            raise OverflowError("a sequence needs more than 63 bits")

    def _add(self, subject: bytes, headers: bytes, data: bytes, *, time_ns: int, seq: int) -> None:
        if seq == 0 and self.first_seq:
            seq = self.last_seq + 1
        if self.rows == 0:
            self.first_seq = seq
        elif self._seqs is None and seq and seq != self.last_seq + 1:
            self._seqs = [self.first_seq + i for i in range(self.rows)]
        if self._seqs is not None:
            self._seqs.append(seq)
        self.last_seq = seq
        self._times.append(time_ns)
        for k, value in enumerate((subject, headers, data)):
            self._columns[k].append(value)
            self._lengths[k] += len(value)
        self.rows += 1


def stamped(block: Block, *, time_ns: int, first_seq: int) -> bytes:
    """A sealed block with the same rows, which have no sequences yet: numbered from `first_seq` on,
    all with the same time. The same result as with a builder, with one copy instead of two."""
    if not block.rows or block.first_seq or first_seq < 1:
        raise ValueError("only rows without sequences can be numbered")
    last_seq = first_seq + block.rows - 1
    if last_seq > SEQ_MAX or not -TIME_MAX - 1 <= time_ns <= TIME_MAX:
        raise OverflowError("a sequence needs more than 63 bits, or a time more than 64")
    raw = bytearray(block.raw)
    sections = (block.subjects_len, block.headers_len, block.data_len, block.nbytes)
    head = (MAGIC, VERSION, 0, block.rows, 0, first_seq, *sections, time_ns, time_ns, last_seq)
    HEADER.pack_into(raw, 0, *head)
    struct.pack_into(f"<{block.rows}q", raw, HEADER.size, *[time_ns] * block.rows)
    struct.pack_into("<I", raw, CRC_AT, crc32(memoryview(raw)[CRC_FROM:]))
    return bytes(raw)


def _check_seq(seq: int) -> None:
    if seq < 0:
        raise ValueError(f"sequence {seq} is negative")
    if seq > SEQ_MAX:
        raise OverflowError("a sequence needs more than 63 bits")
