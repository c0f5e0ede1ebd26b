"""The bytes of a segment: its header, the frames in it, the records in a frame.

Owns: the layout and the checksums. Pure.
May not touch: files, what a record means for a group (raft/store/segments/replay.py).
Spec: docs/decisions/0019-a-log-of-our-own.md. All numbers are little-endian.

    segment  header (one block of 4096 bytes), then frames, each starting at a multiple of 512
    header   magic 8s, number u32, format u32, salt u64, size u64, previous end u64, crc u32
    frame    salt u64, position u64, flushed u64, size u32, records u32, crc u32, 4 bytes zero;
             then the records. A frame without records ends the segment
    record   crc u32, data size u32, group u64, index u64, term u64, term before u64, origin u64,
             kind u8, 7 bytes zero; then the data

A position is `number << 32 | offset`; positions only grow. The salt is drawn when a file becomes
a segment and goes into every checksum, so what an earlier segment left in a recycled file is never
taken for a frame or a record of this one. `flushed` is a position below which everything was on
disk when the frame was written. `origin` is the position that a moved record had first (0: not
moved)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from isal.isal_zlib import crc32

from raft.core.messages import EntryKind

SECTOR: Final = 512  # what a disk writes whole or not at all
HEADER_BYTES: Final = 4096
_MAGIC: Final = b"jetraft\x02"
_FORMAT: Final = 1
_HEADER: Final = struct.Struct("<8sIIQQQ")
_FRAME: Final = struct.Struct("<QQQII")
_CRC: Final = struct.Struct("<I")
_RECORD: Final = struct.Struct("<IQQQQQB7x")
FRAME_BYTES: Final = 40
RECORD_BYTES: Final = _CRC.size + _RECORD.size
_FRAME_PAD: Final = bytes(FRAME_BYTES - _FRAME.size - _CRC.size)

# Kinds of records besides those of entries (raft/core/messages.py).
# The group's record; its entries up to the snapshot are deleted. Index and term are those of the
# last entry that the log had then.
GROUP: Final = 128
RESET: Final = 129  # the same, and all entries are deleted
REMOVED: Final = 130  # the group is deleted


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    number: int
    salt: int
    size: int  # of the file
    # If not 0: the log before this segment ends at this position. What lies between was written
    # but never promised, and is void.
    previous_end: int


@dataclass(frozen=True, slots=True)
class LogFrame:
    """A frame with a valid header. Its records may still be damaged."""

    position: int
    flushed: int
    size: int
    records: int


@dataclass(slots=True)
class LogRecord:
    """A record that was found, without its data if it is an ordinary entry."""

    position: int  # where its bytes are
    origin: int  # where it was written first: orders the records of a group
    group: int
    index: int
    term: int
    before: int  # the term of the entry before
    kind: int
    size: int  # of the data
    data: bytes | None


def position_of(number: int, offset: int) -> int:
    return number << 32 | offset


def number_of(position: int) -> int:
    return position >> 32


def offset_of(position: int) -> int:
    return position & 0xFFFFFFFF


def aligned(offset: int) -> int:
    return (offset + SECTOR - 1) // SECTOR * SECTOR


def encode_header(header: SegmentHeader) -> bytes:
    body = _HEADER.pack(
        _MAGIC, header.number, _FORMAT, header.salt, header.size, header.previous_end
    )
    return body + _CRC.pack(crc32(body)) + bytes(HEADER_BYTES - len(body) - _CRC.size)


def read_header(block: bytes) -> SegmentHeader | None:
    """None if it is not a header of this format, or damaged."""
    if len(block) < _HEADER.size + _CRC.size:
        return None
    body = block[: _HEADER.size]
    magic, number, version, salt, size, previous_end = _HEADER.unpack(body)
    if magic != _MAGIC or version != _FORMAT:
        return None
    if _CRC.unpack_from(block, _HEADER.size)[0] != crc32(body):
        return None
    return SegmentHeader(number, salt, size, previous_end)


def encode_frame(salt: int, *, position: int, flushed: int, size: int, records: int) -> bytes:
    """The header of a frame; `size` counts it too."""
    body = _FRAME.pack(salt, position, flushed, size, records)
    return body + _CRC.pack(crc32(body)) + _FRAME_PAD


def encode_record(
    salt: int,
    *,
    group: int,
    index: int,
    term: int,
    before: int,
    kind: int,
    data: bytes,
    origin: int = 0,
) -> bytes:
    """The header of a record; the data follows it."""
    body = _RECORD.pack(len(data), group, index, term, before, origin, kind)
    return _CRC.pack(crc32(data, crc32(body, salt & 0xFFFFFFFF))) + body


def read_frame(
    salt: int, content: bytes | memoryview, position: int, offset: int
) -> LogFrame | None:
    """The frame at `offset` of `content`, if its header is valid."""
    if len(content) - offset < FRAME_BYTES:
        return None
    body = content[offset : offset + _FRAME.size]
    found_salt, found_position, flushed, size, records = _FRAME.unpack(body)
    if found_salt != salt or found_position != position or size < FRAME_BYTES:
        return None
    if _CRC.unpack_from(content, offset + _FRAME.size)[0] != crc32(body):
        return None
    return LogFrame(position, flushed, size, records)


def read_record(
    salt: int, content: bytes | memoryview, offset: int, position: int, *, data_from: int = 0
) -> LogRecord | None:
    """The record at `offset`, which is at `position` of the log; None if it is damaged. Its data
    is kept if its kind is at least `data_from`."""
    start = offset + RECORD_BYTES
    if len(content) < start:
        return None
    body = content[offset + _CRC.size : start]
    size, group, index, term, before, origin, kind = _RECORD.unpack(body)
    if len(content) < start + size:
        return None
    data = content[start : start + size]
    check = _CRC.unpack_from(content, offset)[0]
    if check != crc32(data, crc32(body, salt & 0xFFFFFFFF)):
        return None
    kept = bytes(data) if kind >= data_from else None
    return LogRecord(position, origin or position, group, index, term, before, kind, size, kept)


def read_records(
    salt: int, content: memoryview, frame: LogFrame, offset: int
) -> Iterator[LogRecord]:
    """The valid records of the frame at `offset`, whose header was read before. After a damaged
    record, the search continues with the next one that can be found."""
    end = min(offset + frame.size, len(content))  # the file may be cut short
    at = offset + FRAME_BYTES
    limit = content[:end]
    while at + RECORD_BYTES <= end:
        position = frame.position + at - offset
        record = read_record(salt, limit, at, position, data_from=EntryKind.CONFIG)
        if record is not None:
            yield record
            at += RECORD_BYTES + record.size
            continue
        (size,) = _CRC.unpack_from(limit, at + _CRC.size)  # perhaps only its data is damaged
        at += RECORD_BYTES + size
