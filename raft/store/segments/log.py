"""The segments of a node: one writer for the records of all groups.

Owns: the table of segments, writing frames, flushing them, reading records back.
May not touch: what records mean (raft/store/log_store.py), when segments are prepared and freed
(raft/store/segments/allocator.py).
Spec: docs/decisions/0019-a-log-of-our-own.md. Every method may be called on any thread: `lock`
protects the table and the end of the log, and is not held during a flush."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from raft.core.messages import Entry, EntryKind
from raft.store.cipher import StoreCipher
from raft.store.group_log import NOWHERE
from raft.store.records import DamagedLog, StoreBusy
from raft.store.segments.files import LogFile
from raft.store.segments.format import (
    FRAME_BYTES,
    HEADER_BYTES,
    RECORD_BYTES,
    SECTOR,
    LogRecord,
    aligned,
    encode_frame,
    encode_record,
    number_of,
    offset_of,
    position_of,
    read_record,
)
from raft.types import GroupId, Index, Term

FRAME_BYTES_GOAL: Final = 1 << 20  # a larger write becomes several frames
RESERVE_BYTES_MAX: Final = 64 << 10
_JOIN_BYTES: Final = 64 << 10  # smaller frames are copied into one buffer, not gathered (pwritev)
_READ_BYTES_MAX: Final = 4 << 20  # in one read
_PLACE: Final = struct.Struct("<QQ")  # group, index: authenticated with the sealed data


class SegmentBusy(StoreBusy):
    """Definite: no segment with enough space is ready. Try again soon."""


@dataclass(slots=True)
class NewRecord:
    """A record to be written."""

    group: int
    index: int
    term: int
    before: int
    kind: int
    data: bytes
    origin: int = 0


@dataclass(slots=True, eq=False)
class LogSegment:
    number: int
    salt: int
    size: int
    name: str
    file: LogFile
    end: int = HEADER_BYTES
    groups: dict[int, int] = field(default_factory=dict)  # highest index of an entry in it

    def room(self, *, frees: bool) -> int:
        """Size of the largest frame that fits. Unless it `frees` space, a reserve is left."""
        reserve = 0 if frees else min(RESERVE_BYTES_MAX, self.size // 16)
        return self.size - SECTOR - self.end - reserve

    @property
    def start_position(self) -> int:
        return position_of(self.number, 0)

    @property
    def end_position(self) -> int:
        return position_of(self.number + 1, 0)


class SegmentLog:
    def __init__(self, *, want_segment: Callable[[int], None]) -> None:
        """`want_segment` requests the next segment, with space for this many bytes; `provide` is
        then called, from any thread."""
        self.lock = threading.RLock()
        self.segments: dict[int, LogSegment] = {}  # those with part of the log, oldest first
        self.flushed = 0  # the position below which everything is on disk
        self.next: LogSegment | None = None  # empty, prepared
        self.active: LogSegment | None = None
        self.cipher: StoreCipher | None = None
        self._want_segment = want_segment
        self._unflushed: list[LogFile] = []  # files with writes after the last flush

    # segments

    def begin(self, segment: LogSegment) -> None:
        """Write into this segment from now on."""
        self.segments[segment.number] = segment
        self.active = segment
        self.flushed = self.end

    @property
    def end(self) -> int:
        assert self.active is not None
        return position_of(self.active.number, self.active.end)

    @property
    def nbytes(self) -> int:
        # A copy, made in one step: another thread may free a segment meanwhile.
        return sum(segment.size for segment in tuple(self.segments.values()))

    def provide(self, segment: LogSegment) -> None:
        with self.lock:
            self.next = segment

    def rotate(self, needed: int = 0) -> LogSegment:
        """Continue in the prepared segment, which is returned. Raises SegmentBusy if there is none
        that holds a frame of `needed` bytes, OSError."""
        while True:
            following, active = self.next, self.active
            assert active is not None
            if following is None:
                self._want_segment(needed)
                following = self.next  # it may have been provided during the call
                if following is None:
                    raise SegmentBusy("the next segment of the log is not ready")
            self._write_frame(active, [], FRAME_BYTES, 0)
            self.next = None
            self.segments[following.number] = following
            self.active = following
            enough = following.room(frees=False) >= needed
            self._want_segment(0 if enough else needed)
            if enough:
                return following

    # writing

    def write(self, records: Sequence[NewRecord], *, frees: bool = True) -> list[int]:
        """Write the records in one or more frames; returns their positions. A crash keeps a prefix
        of the frames. Unless it `frees` space, a reserve is left. Raises OSError, and SegmentBusy,
        after which some of the frames may have been written: the next attempt starts again with
        the first frame, and the segment that is prepared for it has space for all of them."""
        with self.lock:
            try:
                return self._write_frames(records, frees=frees)
            except SegmentBusy:
                data = sum(len(record.data) for record in records)
                frames = 2 * (1 + data // FRAME_BYTES_GOAL)
                more = RECORD_BYTES * len(records) + (FRAME_BYTES + SECTOR) * frames
                self._want_segment(data + more)
                raise

    def _write_frames(self, records: Sequence[NewRecord], *, frees: bool) -> list[int]:
        positions: list[int] = []
        start = size = 0
        for count, record in enumerate(records):
            needed = RECORD_BYTES + len(record.data)
            if size and size + needed > FRAME_BYTES_GOAL:
                self._append(records[start:count], size, positions, frees=frees)
                start, size = count, 0
            size += needed
        self._append(records[start:], size, positions, frees=frees)
        return positions

    def _append(
        self, records: Sequence[NewRecord], size: int, positions: list[int], *, frees: bool
    ) -> None:
        size += FRAME_BYTES
        segment = self.active
        assert segment is not None
        if size > segment.room(frees=frees):
            segment = self.rotate(size)
        salt, groups = segment.salt, segment.groups
        position = position_of(segment.number, segment.end) + FRAME_BYTES
        parts: list[bytes] = []
        for record in records:
            group, index, data = record.group, record.index, record.data
            parts.append(
                encode_record(
                    salt,
                    group=group,
                    index=index,
                    term=record.term,
                    before=record.before,
                    kind=record.kind,
                    data=data,
                    origin=record.origin,
                )
            )
            parts.append(data)
            positions.append(position)
            position += RECORD_BYTES + len(data)
            if groups.get(group, -1) < index:
                groups[group] = index
        self._write_frame(segment, parts, size, len(records))

    def _write_frame(self, segment: LogSegment, parts: list[bytes], size: int, count: int) -> None:
        position = position_of(segment.number, segment.end)
        head = encode_frame(
            segment.salt, position=position, flushed=self.flushed, size=size, records=count
        )
        if segment.file not in self._unflushed:
            self._unflushed.append(segment.file)
        parts = [b"".join((head, *parts))] if size <= _JOIN_BYTES else [head, *parts]
        segment.file.write(parts, segment.end)
        segment.end = aligned(segment.end + size)

    # flushing

    @property
    def unflushed(self) -> list[LogFile]:
        return self._unflushed

    def begin_flush(self) -> tuple[int, list[LogFile]]:
        """What a flush has to cover now: the end of the log, and the files to sync."""
        with self.lock:
            files, self._unflushed = self._unflushed, []
            return self.end, files

    def finish_flush(self, end: int) -> None:
        with self.lock:
            self.flushed = max(self.flushed, end)

    # reading

    def read(
        self, group: GroupId, first: Index, positions: Sequence[int], sizes: Sequence[int]
    ) -> list[Entry]:
        """See EntrySource. Adjacent records are read together."""
        found: list[Entry] = []
        with self.lock:
            at = 0
            while at < len(positions):
                stop, end = at + 1, positions[at] + RECORD_BYTES + sizes[at]
                while (
                    stop < len(positions)
                    and positions[stop] == end
                    and end - positions[at] < _READ_BYTES_MAX
                ):
                    end += RECORD_BYTES + sizes[stop]
                    stop += 1
                salt, content = self._content(group, Index(first + at), positions[at], end)
                for i in range(at, stop):
                    index = Index(first + i)
                    record = read_record(salt, content, positions[i] - positions[at], positions[i])
                    found.append(self._opened(_entry(group, index, record), group))
                at = stop
        return found

    @property
    def overhead(self) -> int:
        """See EntrySource."""
        return 0 if self.cipher is None else self.cipher.overhead

    def sealed(self, group: GroupId, entry: Entry) -> bytes:
        """The data of the entry as it is written."""
        if self.cipher is None or entry.kind is not EntryKind.NORMAL:
            return entry.data
        return self.cipher.seal(entry.data, _PLACE.pack(group, entry.index))

    def _opened(self, entry: Entry, group: GroupId) -> Entry:
        if self.cipher is not None and entry.kind is EntryKind.NORMAL:
            data = self.cipher.open(entry.data, _PLACE.pack(group, entry.index))
            if data is None:
                raise DamagedLog(group, entry.index, "it cannot be decrypted")
            entry.data = data
        return entry

    def _content(
        self, group: GroupId, index: Index, position: int, end: int
    ) -> tuple[int, memoryview]:
        segment = self.segments.get(number_of(position))
        if segment is None:
            reason = "it was found damaged" if position == NOWHERE else "its segment is missing"
            raise DamagedLog(group, index, reason)
        try:
            content = segment.file.read(end - position, offset_of(position))
        except OSError as error:
            raise DamagedLog(group, index, str(error)) from error
        return segment.salt, memoryview(content)

    def record(self, position: int, size: int) -> LogRecord | None:
        """The record at this position with data of this size; None if it is damaged. Raises
        OSError."""
        segment = self.segments.get(number_of(position))
        if segment is None:
            return None
        content = segment.file.read(RECORD_BYTES + size, offset_of(position))
        return read_record(segment.salt, content, 0, position)

    def close(self) -> None:
        with self.lock:
            prepared = [] if self.next is None else [self.next]
            for segment in (*self.segments.values(), *prepared):
                segment.file.close()
            self.segments.clear()
            self.next = self.active = None
            self._unflushed.clear()


def _entry(group: GroupId, index: Index, record: LogRecord | None) -> Entry:
    if record is None:
        raise DamagedLog(group, index, "the checksum does not match")
    if record.group != group or record.index != index or record.data is None:
        raise DamagedLog(group, index, f"found {record.index} of group {record.group} instead")
    try:
        return Entry(index, Term(record.term), record.data, EntryKind(record.kind))
    except ValueError:
        raise DamagedLog(group, index, f"unknown entry kind {record.kind}") from None
