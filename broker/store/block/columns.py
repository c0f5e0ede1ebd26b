"""Bulk operations on the columns of a block: sizes of row ranges, validation, blanking of a row.

Owns: the size formula of a stored message, and reading whole integer columns of a block.
May not touch: which rows are removed, files.
Spec: the block format in block_format.py; NATS JetStream stream state, `bytes`."""

from __future__ import annotations

from dataclasses import dataclass
from struct import pack_into
from typing import Final

from isal.isal_zlib import crc32

from broker.store.block.block_format import CRC_AT, CRC_FROM, HAS_SEQS, HEADER, padded
from broker.store.block.codec import Block, Rows

_FLAGS_AT: Final = 6
_BLANKS: Final = (b" ", b"\t", b"\r", b"\n", b"\f")  # end a subject, or the line it is in


@dataclass(frozen=True, slots=True)
class Sizing:
    """How much one stored message adds to the `bytes` of its stream."""

    per_message: int
    per_header: int  # only for messages that have headers

    def of(self, subject: bytes, headers: bytes, data: bytes) -> int:
        size = self.per_message + len(subject) + len(headers) + len(data)
        return size + self.per_header if headers else size

    def of_row(self, rows: Rows, i: int) -> int:
        size = self.per_message + len(rows.subject(i)) + rows.row_size(i)
        return size + self.per_header if self.per_header and rows.headers(i) else size

    def of_block(self, block: Block) -> int:
        """All rows of the block, without a loop over them."""
        size: int = block.rows * self.per_message
        size += block.subjects_len + block.headers_len + block.data_len
        if block.headers_len and self.per_header:
            # An end differs from the one before only if the header is not empty.
            size += self.per_header * (len(set(Columns(block).header_ends)) - 1)
        return size

    def of_stretch(self, rows: Rows, columns: Columns | None, start: int, stop: int) -> int:
        """Rows `start` to `stop - 1`; without a loop if `columns` are given."""
        if columns is None:
            return sum(self.of_row(rows, i) for i in range(start, stop))
        size: int = (stop - start) * self.per_message
        for ends in (columns.subject_ends, columns.header_ends, columns.data_ends):
            size += ends[stop] - ends[start]
        if self.per_header and columns.header_ends[stop] != columns.header_ends[start]:
            size += self.per_header * (len(set(columns.header_ends[start : stop + 1])) - 1)
        return size


FILE_SIZING: Final = Sizing(per_message=30, per_header=4)
MEMORY_SIZING: Final = Sizing(per_message=16, per_header=0)


class Columns:
    """The integer columns of a block as memory views, without copies."""

    __slots__ = ("block", "data_ends", "header_ends", "subject_ends", "subject_text_at", "times")

    def __init__(self, block: Block) -> None:
        self.block = block
        view = memoryview(block.raw).cast("B")
        count = block.rows
        at = HEADER.size + (8 * count if view[_FLAGS_AT] & HAS_SEQS else 0)
        self.times = view[at : at + 8 * count].cast("q")
        at += 8 * count
        ends_size = 4 * (count + 1)
        step = (ends_size + 7) & ~7
        self.subject_ends = view[at : at + ends_size].cast("i")
        self.header_ends = view[at + step : at + step + ends_size].cast("i")
        self.data_ends = view[at + 2 * step : at + 2 * step + ends_size].cast("i")
        self.subject_text_at = at + 3 * step

    def header_span(self, i: int) -> tuple[int, int]:
        """Start and end of the headers of row i in the raw block."""
        at = self.subject_text_at + padded(self.block.subjects_len)
        return at + self.header_ends[i], at + self.header_ends[i + 1]

    def data_span(self, i: int) -> tuple[int, int]:
        at = self.subject_text_at + padded(self.block.subjects_len) + padded(self.block.headers_len)
        return at + self.data_ends[i], at + self.data_ends[i + 1]


def unwritable_subject(block: Block) -> bytes | None:
    """A subject that would break the line of a message to a client: an empty one, or one with a
    blank or a line break. None if the block has none."""
    columns = Columns(block)
    at = columns.subject_text_at
    text = bytes(memoryview(block.raw).cast("B")[at : at + block.subjects_len])
    # An end differs from the one before only if the subject is not empty.
    sound = len(set(columns.subject_ends)) == block.rows + 1 and not any(
        blank in text for blank in _BLANKS
    )
    if sound:
        return None
    subjects = map(block.subject, range(block.rows))
    return next(one for one in subjects if not one or any(blank in one for blank in _BLANKS))


def header_text(block: Block) -> bytes:
    """The headers of all rows, one after the other. There must be a row."""
    columns = Columns(block)
    at, end = columns.header_span(0)[0], columns.header_span(block.rows - 1)[1]
    return bytes(memoryview(block.raw).cast("B")[at:end])


def has_status(block: Block) -> bool:
    """Whether some header block may begin with a status line. False positives are rare."""
    text = header_text(block)
    # Search the short text first: every header block begins like the long one, which is slower.
    return b"/1.0 " in text and b"NATS/1.0 " in text


def blanked(block: Block, i: int) -> bytes:
    """The block with zeros in place of the headers and data of row i, and a new checksum."""
    raw = bytearray(block.raw)
    columns = Columns(block)
    for start, stop in (columns.header_span(i), columns.data_span(i)):
        raw[start:stop] = bytes(stop - start)
    pack_into("<I", raw, CRC_AT, crc32(memoryview(raw)[CRC_FROM:]))
    return bytes(raw)
