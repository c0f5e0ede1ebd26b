"""Scans the segments at startup: which frames are valid, and where the log ends.

Owns: telling a torn end, which was never promised, from damage to what may have been promised.
May not touch: what the records mean for a group (raft/store/segments/replay.py); it changes no
file.
Spec: docs/decisions/0019-a-log-of-our-own.md, "Recovery". Of writes after the last flush, any
sectors may be on disk. So a hole ends the log, unless something proves that it was flushed;
everything after it is void. If a later frame or a promise proves that the position of the hole was
flushed, the hole is damage: the log continues after it, and the replay of each group detects
missing records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from raft.store.segments.files import LogFile, LogFiles
from raft.store.segments.format import (
    FRAME_BYTES,
    HEADER_BYTES,
    SECTOR,
    LogFrame,
    LogRecord,
    SegmentHeader,
    aligned,
    number_of,
    offset_of,
    position_of,
    read_frame,
    read_header,
    read_records,
)

SEGMENT_SUFFIX: Final = ".seg"
UNFINISHED_SUFFIX: Final = ".new"
SPARE_SUFFIX: Final = ".spare"


def segment_name(number: int) -> str:
    return f"{number:010d}{SEGMENT_SUFFIX}"


@dataclass(slots=True)
class FoundSegment:
    header: SegmentHeader
    file: LogFile
    name: str
    groups: dict[int, int] = field(default_factory=dict)  # highest index of an entry in it


@dataclass(slots=True)
class LogScan:
    segments: list[FoundSegment]  # those that contain part of the log, oldest first
    records: dict[int, list[LogRecord]]  # by group, in the order of their positions
    end: int  # the position where the log ends
    next_number: int  # of the next segment: larger than any that was ever used
    damage: list[str]  # descriptions for the operator
    unused: list[str]  # files that contain no part of the log; they may be removed


@dataclass(slots=True)
class _Piece:
    """A stretch of the log: a frame, or a hole."""

    segment: FoundSegment
    position: int
    frame: LogFrame | None
    records: list[LogRecord]  # the valid ones

    @property
    def whole(self) -> bool:
        return self.frame is not None and len(self.records) == self.frame.records


def scan(files: LogFiles, *, promised: int) -> LogScan:
    """Blocking. `promised`: a position below which everything was flushed (promises file)."""
    segments, unused, damage = _open_segments(files)
    ends, void = _void_ranges([segment.header for segment in segments])
    pieces: list[_Piece] = []
    kept: list[FoundSegment] = []
    expected = 0
    for segment in segments:
        number = segment.header.number
        if number in void:
            segment.file.close()
            unused.append(segment.name)
            continue
        explained = segment.header.previous_end
        if kept and number != expected and not explained:
            pieces.append(_Piece(kept[-1], position_of(expected, HEADER_BYTES), None, []))
            damage.append(f"segment {expected} of the log is missing")
        expected = number + 1
        kept.append(segment)
        content = segment.file.read(segment.header.size, 0)
        if len(content) < segment.header.size:
            damage.append(f"{segment.name} has {len(content)} of {segment.header.size} bytes")
        pieces.extend(_pieces(segment, content, ends.get(number)))
    flushed = max(
        [
            promised,
            *(piece.frame.flushed for piece in pieces if piece.frame is not None),
            *(segment.header.previous_end for segment in kept),
        ],
    )
    records, end = _join(pieces, flushed, damage)
    numbers = [s.header.number for s in segments]
    return LogScan(
        kept,
        records,
        end,
        max([number_of(promised), number_of(flushed), *numbers]) + 1,
        damage,
        unused,
    )


def _open_segments(files: LogFiles) -> tuple[list[FoundSegment], list[str], list[str]]:
    found: list[FoundSegment] = []
    unused: list[str] = []
    damage: list[str] = []
    for name in files.names():
        if not name.endswith(SEGMENT_SUFFIX):
            unused.append(name)
            continue
        file = files.open(name)
        header = read_header(file.read(HEADER_BYTES, 0))
        if header is not None and segment_name(header.number) == name:
            found.append(FoundSegment(header, file, name))
            continue
        file.close()
        if header is None:
            damage.append(f"the header of {name} is damaged")
        else:  # it was being recycled, and the crash restored its old name
            unused.append(name)
    return sorted(found, key=lambda segment: segment.header.number), unused, damage


def _void_ranges(headers: list[SegmentHeader]) -> tuple[dict[int, int], set[int]]:
    """Where segments end and which ones are void, according to later headers."""
    ends: dict[int, int] = {}
    void: set[int] = set()
    for header in headers:
        if header.previous_end:
            last = number_of(header.previous_end)
            ends[last] = offset_of(header.previous_end)
            void.update(h.number for h in headers if last < h.number < header.number)
    return ends, void


def _pieces(segment: FoundSegment, content: bytes, end: int | None) -> Iterator[_Piece]:
    number, salt = segment.header.number, segment.header.salt
    view = memoryview(content)[:end]
    offset = HEADER_BYTES
    while end is None or offset < end:
        position = position_of(number, offset)
        frame = read_frame(salt, view, position, offset)
        if frame is not None and offset + frame.size <= len(view):
            if not frame.records:
                return  # the end of the segment
            records = list(read_records(salt, view, frame, offset))
            yield _Piece(segment, position, frame, records)
            offset = aligned(offset + frame.size)
            continue
        yield _Piece(segment, position, None, [])
        following = _next_frame(salt, content, number, offset + SECTOR, len(view))
        if following is None:
            return
        offset = following


def _next_frame(salt: int, content: bytes, number: int, start: int, end: int) -> int | None:
    """The offset of the next frame with a valid header. Frames start at sector boundaries."""
    pattern = salt.to_bytes(8, "little")
    at = content.find(pattern, start, end)
    while at >= 0:
        if at % SECTOR == 0:
            frame = read_frame(salt, content, position_of(number, at), at)
            if frame is not None and frame.size >= FRAME_BYTES:
                return at
        at = content.find(pattern, at + 1, end)
    return None


def _join(
    pieces: list[_Piece], flushed: int, damage: list[str]
) -> tuple[dict[int, list[LogRecord]], int]:
    """The valid records, and where the log ends."""
    records: dict[int, list[LogRecord]] = defaultdict(list)
    end = 0
    for piece in pieces:
        if not piece.whole:
            if piece.position >= flushed:
                return records, end or piece.position  # an unused segment is void
            damage.append(
                f"{piece.segment.name} is damaged at {offset_of(piece.position)}, which was flushed"
            )
        if piece.frame is not None:
            end = piece.position + aligned(piece.frame.size)
        groups = piece.segment.groups
        for record in piece.records:
            records[record.group].append(record)
            groups[record.group] = max(groups.get(record.group, 0), record.index)
    return records, end
