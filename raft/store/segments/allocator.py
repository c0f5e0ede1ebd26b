"""Prepares segments before they are needed, and frees those that are not needed any more.

Owns: the files of segments: creating, zeroing, recycling and removing them.
May not touch: which records are alive (its owner says so), the event loop.
Spec: docs/decisions/0019-a-log-of-our-own.md, "Segments". A file is filled with zeros before it is
used, or was a segment before: a flush then writes data and no metadata. Segments are freed oldest
first; what is alive in the oldest one is copied to the end of the log when it is little, or when
the log is larger than it should be. Jobs run one at a time, on a thread of their own."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final

from raft.store.disk_space import Space
from raft.store.segments.background_jobs import Jobs
from raft.store.segments.files import LogFile, LogFiles
from raft.store.segments.format import (
    FRAME_BYTES,
    GROUP,
    HEADER_BYTES,
    RECORD_BYTES,
    SECTOR,
    LogRecord,
    SegmentHeader,
    aligned,
    encode_header,
)
from raft.store.segments.live_records import LiveRecord, LiveRecords, live_bytes
from raft.store.segments.log import (
    RESERVE_BYTES_MAX,
    LogSegment,
    NewRecord,
    SegmentBusy,
    SegmentLog,
)
from raft.store.segments.scan import (
    SEGMENT_SUFFIX,
    SPARE_SUFFIX,
    UNFINISHED_SUFFIX,
    segment_name,
)
from raft.store.segments.sizes import SegmentSizes

_log = logging.getLogger("raft.store")
_ZEROS: Final = bytes(1 << 20)
_GROWTH: Final = 4  # each new segment is 4 times larger than the last, up to the limit
_LITTLE: Final = 8  # a segment is freed by copying if at most 1/8 of it is alive
_MOVE_BYTES: Final = 256 << 10  # copied while the lock is held
_WAIT_S: Final = 0.05
_READ_ATTEMPTS: Final = 5  # until a record that cannot be read counts as damaged
_PATIENCE_TICKS: Final = 300  # before a segment with more live records than that is copied


class SegmentAllocator:
    def __init__(
        self,
        files: LogFiles,
        *,
        limits: SegmentSizes,
        live: LiveRecords,
        jobs: Jobs,
        draw_salt: Callable[[], int],
        space: Callable[[int], Space],
    ) -> None:
        """`space` returns the level of disk space after this many more bytes."""
        self.sizes = limits  # current sizes
        self.log = SegmentLog(want_segment=self._want)
        self.trouble: OSError | None = None  # why the next segment could not be prepared
        self.pressed: LogSegment | None = None  # to be freed: compact logs with entries in it
        self.short = False  # the disk is full: keep no spare files, and set `pressed`
        self._files = files
        self._limits = limits
        self._live = live
        self._jobs = jobs
        self._draw_salt = draw_salt
        self._space = space
        self._next_number = 1
        self._spares: list[tuple[str, int]] = []  # name and size
        self._preparing = self._freeing = self._fitting = False
        self._needed = 0
        self._hurry = False
        self._read_failures = 0  # in a row
        self._changed = False  # records were deleted since the oldest segment was checked
        self._patience = _PATIENCE_TICKS
        self._closed = False
        self._fresh_only = False  # no file may be recycled: what it holds must be erased
        self._names_changed = False  # of freed segments; not yet on disk
        self._prepared = threading.Event()

    # the start

    def open(
        self,
        segments: Sequence[LogSegment],
        *,
        end: int,
        number: int,
        unused: Sequence[str],
        carried: Sequence[LogRecord] = (),
    ) -> None:
        """Blocking. The log of these segments ends at `end` and continues in a new segment, with
        copies of the `carried` records. Naming it is atomic: everything else after `end` becomes
        void. Then the `unused` files are removed. Raises OSError."""
        self._next_number = number
        for segment in segments:
            self.log.segments[segment.number] = segment
        for name in unused:
            if not name.endswith(SEGMENT_SUFFIX):
                self._files.remove(name)
        each = RECORD_BYTES + FRAME_BYTES + SECTOR
        needed = sum(record.size + each for record in carried) + RESERVE_BYTES_MAX + HEADER_BYTES
        first = self.sizes.first
        size = max(first, aligned(needed)) if carried else first
        segment, source = self._blank_segment(size, previous_end=end)
        self.log.begin(segment)
        self._carry(carried)
        self._name(segment, source)
        for name in unused:
            if name.endswith(SEGMENT_SUFFIX):
                self._files.remove(name)
        self._changed = True
        self._want(0)

    def _carry(self, records: Sequence[LogRecord]) -> None:
        """Copy these records, dead or alive: a record that replaces an earlier one must not be lost
        while the earlier one is kept."""
        for record in records:
            copy = self._copy(self.log.record(record.position, record.size))
            if copy is None:
                continue  # damaged, as recovery has found before
            (position,) = self.log.write([copy])
            index = 0 if record.kind >= GROUP else record.index
            live = LiveRecord(record.group, index, record.position, record.size)
            if self._live.is_alive(live):
                self._live.was_moved(live, position)

    def close(self) -> None:
        """Blocks while a job runs."""
        self._closed = True
        self._hurry = True
        self._jobs.stop()
        self.log.close()

    # preparing

    def _want(self, needed: int) -> None:
        """Called by the log, with its lock held. A writer waits for `needed` bytes."""
        self._hurry |= bool(needed)
        self._needed = max(self._needed, needed)
        if not self._preparing and self.log.next is None:
            self._preparing = True
            self._jobs.submit(self._prepare)

    def _prepare(self) -> None:
        log, sizes = self.log, self.sizes
        with log.lock:
            active = log.active
            if self._closed or active is None:
                return
            needed = HEADER_BYTES + self._needed + RESERVE_BYTES_MAX + 2 * SECTOR
            usual = min(active.size * _GROWTH, sizes.largest)
            size = max(usual, aligned(needed)) if self._needed else usual
        if self._space(size) < Space.AMPLE:  # a small one: it is for what frees space
            size = max(sizes.first, aligned(needed)) if self._needed else sizes.first
        try:
            segment = self._make(size, previous_end=0)
        except OSError as error:
            if self.trouble is None:
                _log.warning("the next segment of the log cannot be prepared: %s", error)
            self.trouble = error
            with log.lock:
                self._preparing = False
            return
        self._prepared.set()
        with log.lock:
            self.trouble = None
            self._preparing = self._hurry = False
            self._needed = 0
            if self._closed:
                segment.file.close()
            else:
                log.provide(segment)

    def _make(self, size: int, *, previous_end: int) -> LogSegment:
        """A file with a flushed header, under the name of a segment. Raises OSError."""
        segment, source = self._blank_segment(size, previous_end=previous_end)
        self._name(segment, source)
        return segment

    def _blank_segment(self, size: int, *, previous_end: int) -> tuple[LogSegment, str]:
        """A segment whose file does not have its final name yet, and the file's current name."""
        number = self._next_number  # counted up on success only: a gap looks like a lost segment
        file, source, size = self._blank(number, size, urgent=bool(previous_end))
        salt = self._draw_salt()
        try:
            file.write([encode_header(SegmentHeader(number, salt, size, previous_end))], 0)
        except BaseException:
            file.close()
            raise
        return LogSegment(number, salt, size, segment_name(number), file), source

    def _name(self, segment: LogSegment, source: str) -> None:
        """Give the segment its final name: from now on it is part of the log."""
        try:
            segment.file.sync()
            self._files.rename(source, segment.name)
            self._files.sync_names()
        except BaseException:
            segment.file.close()
            raise
        self._next_number += 1

    def _blank(self, number: int, size: int, *, urgent: bool) -> tuple[LogFile, str, int]:
        """A file without a header, its name and its size. `urgent`: use the last free space."""
        short = not urgent and self._space(size) < Space.SCARCE
        with self.log.lock:  # secure erase drops them on another thread
            for at, (spare, spare_size) in enumerate(self._spares):
                if spare_size >= size or (short and spare_size >= self._needed + 2 * HEADER_BYTES):
                    del self._spares[at]
                    return self._files.open(spare), spare, spare_size
        if short:
            raise OSError(errno.ENOSPC, "No space left on device")
        source = segment_name(number) + UNFINISHED_SUFFIX
        file = self._files.create(source)
        try:
            file.allocate(size)
            for offset in range(0, size, len(_ZEROS)):
                if self._hurry:
                    break  # a writer waits; flushes to an unzeroed file cost a little more
                file.write([_ZEROS[: size - offset]], offset)
            file.sync()
        except BaseException:
            file.close()
            self._files.remove(source)
            raise
        return file, source, size

    # freeing

    def something_died(self) -> None:
        """A log was compacted or a group removed: the oldest segment may be free now."""
        self._changed = True

    def tick(self) -> None:
        """Called at short, regular intervals: free what can be freed, in the background."""
        if self.log.next is None and not self._preparing:
            with self.log.lock:
                self._want(0)
        if self.pressed is not None:
            self._patience -= 1
            self._changed |= self._patience == 0
        elif self.log.nbytes > self.sizes.log_goal:
            self._changed = True
        if not self._fitting and (self._spare_bytes > self.sizes.spare_max or self._is_too_large()):
            self._fitting = True
            self._jobs.submit(self._fit)
        if self.short and self._spares:
            self._changed = True
        if not self._freeing and self._changed and len(self.log.segments) > 1:
            self._freeing = True
            self._jobs.submit(self._free)

    def _free(self) -> None:
        try:
            if self.short:
                self._drop_spares()
            while not self._closed and self._free_oldest():
                pass
        except OSError as error:
            _log.warning("a segment of the log cannot be freed: %s", error)
        finally:
            self._freeing = False

    def _free_oldest(self) -> bool:
        """Free the oldest segment if that is worthwhile. Returns whether it was freed."""
        log = self.log
        with log.lock:
            self._changed = False
            oldest = next(iter(log.segments.values()))
            if oldest is log.active:
                return False
            live = self._live.live_in(oldest)
            if live_bytes(live) > oldest.size // _LITTLE:
                excess = log.nbytes - self.sizes.log_goal
                if excess <= 0:
                    self.pressed = oldest if self.short else None
                    return False
                if self.pressed is not oldest:
                    self.pressed, self._patience = oldest, _PATIENCE_TICKS
                if self._patience > 0 and excess < self._limits.log_goal:
                    return False
                # Below the limit, copying must make the log smaller.
                if log.nbytes <= self._limits.log_goal and live_bytes(live) > oldest.size // 2:
                    return False
        if not self.move(live):
            self._changed = True  # the log has no segment to move them to: try again
            return False
        # Needed even if nothing was alive: a flush may still have the segment's file in hand.
        self._live.flush_all()
        self._release(oldest)
        return True

    def move(self, live: Sequence[LiveRecord]) -> bool:
        """Copy the records to the end of the log. False if it has no space now."""
        start = size = 0
        for count, record in enumerate(live):
            size += record.size
            if size > _MOVE_BYTES or count == len(live) - 1:
                if not self._move(live[start : count + 1]):
                    return False
                start, size = count + 1, 0
        return True

    def _move(self, live: Sequence[LiveRecord]) -> bool:
        log = self.log
        with log.lock:
            moving: list[LiveRecord] = []
            copies: list[NewRecord] = []
            try:
                for wanted in live:
                    if not self._live.is_alive(wanted):
                        continue
                    copy = self._copy(self._read(wanted))
                    if copy is None:
                        self._live.is_damaged(wanted)  # which may write a record again
                        continue
                    moving.append(wanted)
                    copies.append(copy)
                if not copies:
                    return True
                positions = log.write(copies)
            except SegmentBusy:
                return False
            for record, position in zip(moving, positions, strict=True):
                self._live.was_moved(record, position)
            return True

    @staticmethod
    def _copy(found: LogRecord | None) -> NewRecord | None:
        if found is None or found.data is None:
            return None
        return NewRecord(
            found.group,
            found.index,
            found.term,
            found.before,
            found.kind,
            found.data,
            found.origin,
        )

    def _read(self, wanted: LiveRecord) -> LogRecord | None:
        """None if it is damaged, or reading has failed _READ_ATTEMPTS times. Raises OSError."""
        try:
            found = self.log.record(wanted.position, wanted.size)
        except OSError:
            self._read_failures += 1
            if self._read_failures < _READ_ATTEMPTS:
                raise
            return None
        self._read_failures = 0
        return found

    def _release(self, segment: LogSegment) -> None:
        """Remove or recycle the file. Raises OSError; the segment then stays the oldest, because
        later segments may supersede its records and must not be freed before it."""
        self._sync_names()
        with self.log.lock:
            if segment.number not in self.log.segments:
                return  # the log was closed meanwhile
            self._retire(segment)
            del self.log.segments[segment.number]
            if self.pressed is segment:
                self.pressed = None
        segment.file.close()
        self._sync_names()

    def _retire(self, segment: LogSegment) -> None:
        too_many = self.short or self._spare_bytes + segment.size > self.sizes.spare_max
        too_small = segment.size < self.sizes.largest and self.log.next is not None
        if self._closed or self._fresh_only or too_many or too_small:
            self._files.remove(segment.name)
        else:
            spare = segment_name(segment.number) + SPARE_SUFFIX
            self._files.rename(segment.name, spare)
            self._spares.append((spare, segment.size))
        self._names_changed = True

    def _sync_names(self) -> None:
        if self._names_changed:
            self._files.sync_names()
            self._names_changed = False

    # shrinking

    @property
    def _spare_bytes(self) -> int:
        return sum(size for _, size in self._spares)

    def _is_too_large(self) -> bool:
        """Whether the log exceeds its goal because of large segments from a busier time."""
        log, usual = self.log, 2 * self.sizes.largest
        active, following = log.active, log.next
        if active is None or following is None:
            return False
        surplus = log.nbytes + following.size > self.sizes.log_goal
        return surplus and (active.size > usual or following.size > usual)

    def _fit(self) -> None:
        """Shrink a log that is no longer busy: remove spare files, use smaller segments."""
        try:
            with self.log.lock:
                while not self._closed and self._spare_bytes > self.sizes.spare_max:
                    name, _ = self._spares.pop(0)
                    self._files.remove(name)
            self._prepare_smaller()
            with self.log.lock:
                if not self._closed and self._is_too_large():
                    self.log.rotate()  # the large segment is freed when nothing in it is alive
                    self._changed = True
        except SegmentBusy:
            return  # the smaller one cannot be prepared now
        except OSError as error:
            _log.warning("cannot shrink the log, will retry: %s", error)
        finally:
            self._fitting = False

    def _prepare_smaller(self) -> None:
        """Replace the prepared segment by a smaller one, if it is too large. It was never written
        to, so the new one gets its number and name. Raises OSError."""
        log = self.log
        with log.lock:
            following = log.next
            if self._closed or following is None or following.size <= 2 * self.sizes.largest:
                return
            log.next = None
            self._preparing = True
            self._next_number = following.number
        try:
            following.file.close()
            self._files.remove(following.name)
        finally:  # if the file is still there, the new segment replaces it
            self._prepare()

    # secure erase

    def rewrite(self) -> None:
        """Blocking. Afterwards no file contains a record that was not alive at the call. Raises
        OSError."""
        log = self.log
        self._fresh_only = True
        try:
            # The prepared segment may be a recycled file, and only the one after it is not.
            for _ in range(2):
                self._drop_spares()
                self._rotate()
            with log.lock:
                old = [s for s in log.segments.values() if s is not log.active]
            for segment in old:
                with log.lock:
                    live = self._live.live_in(segment)
                while not self.move(live):
                    self.wait_for_segment()
            self._live.flush_all()
            for segment in old:
                if segment.number in log.segments:
                    self._release(segment)
            self._drop_spares()
        finally:
            self._fresh_only = False

    def _rotate(self) -> None:
        while True:
            try:
                with self.log.lock:
                    self.log.rotate()
            except SegmentBusy:
                self.wait_for_segment()
            else:
                return

    def wait_for_segment(self) -> None:
        """Blocks for a short time. Raises OSError if no segment can be prepared."""
        if self._closed:
            raise OSError(errno.EBADF, "the log was closed")
        if self.trouble is not None:
            raise self.trouble
        self._prepared.clear()
        if self.log.next is None:
            self._prepared.wait(_WAIT_S)

    def _drop_spares(self) -> None:
        with self.log.lock:
            while self._spares:
                self._files.remove(self._spares.pop()[0])
        self._files.sync_names()
