"""Reading the segments after a start: which frames count, and where the log ends.

Owns: telling a torn end, which was never promised, from damage, which may have been.
May not touch: what the records mean for a group (raft/store/segments/replay.py); it changes no
file.
Spec: docs/decisions/0019-a-log-of-our-own.md, "Recovery". Writes after the last flush may be on
disk in part and in any order of their sectors. So a hole ends the log if nothing says that it was
flushed; everything behind it is void. If a later frame or a promise says that the position of the
hole was flushed, then it is damage: the log goes on behind it, and the groups that miss a record
find that out by themselves."""

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
    segments: list[FoundSegment]  # those with a part of the log in them, oldest first
    records: dict[int, list[LogRecord]]  # by group, in the order of their positions
    end: int  # the position where the log ends
    next_number: int  # of the next segment: larger than any that was ever used
    damage: list[str]  # sentences for the operator
    unused: list[str]  # files without a part of the log; they may be removed


@dataclass(slots=True)
class _Piece:
    """A stretch of the log: a frame, or a hole."""

    segment: FoundSegment
    position: int
    frame: LogFrame | None
    records: list[LogRecord]  # those that are sound

    @property
    def whole(self) -> bool:
        return self.frame is not None and len(self.records) == self.frame.records


def scan(files: LogFiles, *, promised: int) -> LogScan:
    """Blocking. `promised`: a position below which all was flushed, from another place."""
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
        else:  # it was about to be recycled, and its old name came back
            unused.append(name)
    return sorted(found, key=lambda segment: segment.header.number), unused, damage


def _void_ranges(headers: list[SegmentHeader]) -> tuple[dict[int, int], set[int]]:
    """Where segments end and which ones do not count, as later headers say."""
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
    """The offset of the next frame with a sound header. Frames start at sectors."""
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
    """The records that count, and where the log ends."""
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
