"""The logs of all groups of a node, as records in segments.

Owns: the table of group logs, turning a LogBatch into records, recovery, giving up a lost log.
May not touch: the database (raft/store/log_store.py), the event loop.
Spec: docs/decisions/0019-a-log-of-our-own.md. `write` belongs to one thread; `flush` may run on
another one meanwhile. After a failed flush nothing is accepted: what is on disk is not known."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from raft.store.cipher import StoreCipher
from raft.store.disk_space import Space
from raft.store.group_log import NOWHERE, GroupLog
from raft.store.log_flush import LogFlush
from raft.store.records import NO_SNAPSHOT, DamagedLog, GroupRecord, group_value
from raft.store.segments.allocator import SegmentAllocator
from raft.store.segments.background_jobs import Jobs
from raft.store.segments.files import LogFiles
from raft.store.segments.format import GROUP, REMOVED, RESET, LogRecord
from raft.store.segments.live_records import LiveRecord
from raft.store.segments.log import LogSegment, NewRecord, SegmentBusy
from raft.store.segments.promises import KeptPromise, PromiseTable
from raft.store.segments.replay import replay
from raft.store.segments.scan import LogScan, scan
from raft.store.segments.sizes import SegmentSizes, SegmentSizing
from raft.store.write_batch import LogBatch
from raft.types import GroupId, HardState, Index, InvariantViolation, SnapshotMeta, Term

_log = logging.getLogger("raft.store")
NO_INDEX: Final = Index(0)
_SYNC_TICKS: Final = 20  # the promises file is synced every 20 ticks


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Where a NodeLog is, and what it needs from outside."""

    segments: LogFiles
    promises: LogFiles
    jobs: Callable[[], Jobs]
    draw_salt: Callable[[], int]
    space: Callable[[int], Space]  # the level of disk space after this many more bytes
    cipher: StoreCipher | None = None  # of the data of entries


@dataclass(slots=True)
class DamagedGroup:
    """A group whose log has lost something: quarantined until it is given up or removed."""

    error: DamagedLog
    hard_state: HardState | None  # as far as it is known
    log: GroupLog | None = None  # up to the first entry that is missing
    records: dict[int, LiveRecord] = field(default_factory=dict)  # what is left, by position


class NodeLog:
    def __init__(
        self, disk: LogPlace, limits: SegmentSizes, *, trusted_end: int | None = None
    ) -> None:
        """Blocking. `trusted_end`: after a failed flush, the end of what is certainly on disk; what
        is found after it is written again. Raises OSError."""
        self._logs: dict[GroupId, GroupLog] = {}
        self._damaged: dict[GroupId, DamagedGroup] = {}
        self._dirty: set[GroupId] = set()  # written and not flushed
        self._ticks = 0
        self._is_closed = False
        self._promises = PromiseTable(disk.promises)
        self._jobs = disk.jobs()
        self._allocator = SegmentAllocator(
            disk.segments,
            limits=limits,
            live=self,
            jobs=self._jobs,
            draw_salt=disk.draw_salt,
            space=disk.space,
        )
        self._segments = self._allocator.log
        self._segments.cipher = disk.cipher
        self._sizing = SegmentSizing(limits)
        self._allocator.sizes = self._sizing.now
        self.flushes = LogFlush(self._segments, self._promises, self._take_promises)
        highest = self._promises.highest_position()
        found = scan(disk.segments, promised=highest + 1 if highest else 0)
        self.is_new = not found.segments and not self._promises.existed
        self._recover(found)
        self._open(found, trusted_end)

    # recovery

    def _recover(self, found: LogScan) -> None:
        for sentence in found.damage:
            _log.error("the log is damaged: %s", sentence)
        if found.segments and not self._promises.existed:
            _log.warning("the promises file is missing: a truncated log would not be detected")
        promises = self._promises.found
        for number in {*found.records, *promises}:
            group = GroupId(number)
            log = GroupLog(group, self._segments)
            records = found.records.get(group, [])
            promise = promises.get(group)
            result = replay(log, records, promise)
            if isinstance(result, DamagedLog):
                hard_state = log.hard_state() if log.record_position != NOWHERE else None
                self._damaged[group] = DamagedGroup(
                    result,
                    _strictest(hard_state, promise),
                    log,
                    {r.position: LiveRecord(group, r.index, r.position, r.size) for r in records},
                )
                _log.error("%s", result)
            elif result is not None:
                self._logs[group] = result
                self._dirty.add(group)  # its recorded promise may be outdated
            elif promise is not None:
                self._promises.clear(group)
            if result is not None:
                self._promises.reserve(group)

    def _open(self, found: LogScan, trusted_end: int | None) -> None:
        segments = [
            LogSegment(
                s.header.number, s.header.salt, s.header.size, s.name, s.file, groups=s.groups
            )
            for s in found.segments
        ]
        end = found.end if trusted_end is None else min(found.end, trusted_end)
        if trusted_end is None:
            for segment in segments:  # what was read may only be in the page cache
                segment.file.sync()
            # Nothing after the end counts. Those files are removed once the new header is on disk.
            for segment in [s for s in segments if s.start_position > found.end]:
                segments.remove(segment)
                segment.file.close()
                found.unused.append(segment.name)
        carried: list[LogRecord] = []
        if trusted_end is not None:
            records = (record for group in found.records.values() for record in group)
            carried = sorted(
                (record for record in records if record.position >= end),
                key=lambda record: record.position,
            )
        self._allocator.open(
            segments, end=end, number=found.next_number, unused=found.unused, carried=carried
        )
        self.flush()

    def close(self) -> None:
        """Without a flush. A second call does nothing: descriptors may belong to others by then."""
        if self._is_closed:
            return
        self._is_closed = True
        self.flushes.wait()  # its files must stay open
        self._allocator.close()
        self._promises.close()

    @property
    def trusted_end(self) -> int:
        return self._segments.flushed

    # reading

    def groups(self) -> list[GroupId]:
        known = {group for group, log in self._logs.items() if log.record_position != NOWHERE}
        return sorted(known.union(self._damaged))

    def exists(self, group: GroupId) -> bool:
        log = self._logs.get(group)
        return group in self._damaged or (log is not None and log.record_position != NOWHERE)

    def reader(self, group: GroupId) -> GroupLog:
        """Raises DamagedLog."""
        log = self._logs.get(group)
        if log is None:
            damaged = self._damaged.get(group)
            if damaged is not None:
                error = damaged.error
                raise DamagedLog(error.group, error.index, error.reason)
            log = self._logs[group] = GroupLog(group, self._segments)
        return log

    @property
    def nbytes(self) -> int:
        return self._segments.nbytes

    @property
    def goal_bytes(self) -> int:
        """How large the log should be at most."""
        return self._sizing.now.log_goal

    @property
    def trouble(self) -> OSError | None:
        """Why there is no next segment, if so."""
        return self._allocator.trouble

    def is_pressed(self, group: GroupId) -> bool:
        """Whether entries of this group keep a segment that should be freed."""
        pressed = self._allocator.pressed
        return pressed is not None and (self._allocator.short or group in pressed.groups)

    # writing

    def write_when_ready(self, batch: LogBatch) -> int:
        """Like `write`, but blocks until a segment is ready, so never raises SegmentBusy."""
        while True:
            try:
                return self.write(batch, frees=True)
            except SegmentBusy:
                self._allocator.wait_for_segment()

    def write(self, batch: LogBatch, *, frees: bool = False) -> int:
        """Write without flushing; the entries can be read afterwards. Returns the bytes written.
        `frees`: the batch frees more than it takes, so it may use the reserve. Raises SegmentBusy,
        OSError; DamagedLog for a group that is damaged, unless it is removed."""
        self.flushes.check()
        self._promises.reserve_all(batch.entries)
        if batch.hard_states or batch.snapshots or batch.installs:
            self._promises.reserve_all((*batch.hard_states, *batch.snapshots, *batch.installs))
        with self._segments.lock:
            changed = self._changed_records(batch)
            records: list[NewRecord] = []
            for group in batch.removed:
                records.append(NewRecord(group, 0, 0, 0, REMOVED, b""))
            for group, record in changed.items():
                records.append(self._group_record(group, record, batch.snapshots.get(group)))
            self._encode_entries(batch, records)
            if not records:
                return 0
            positions = self._segments.write(records, frees=frees)
            self._note(batch, changed, positions)
        for group in batch.removed:
            self._promises.clear(group)
        if batch.removed or batch.cuts or batch.snapshots:
            self._allocator.something_died()
        size = 0
        for written in records:
            size += len(written.data)
        self._sizing.written(size)
        return size

    def _changed_records(self, batch: LogBatch) -> dict[GroupId, GroupRecord]:
        changed: dict[GroupId, GroupRecord] = {}
        logs = self._logs
        for group in batch.entries:
            log = logs.get(group)
            if log is None or log.record_position == NOWHERE:
                break
        else:
            if not (batch.hard_states or batch.snapshots or batch.cuts or batch.installs):
                return changed  # the usual case: entries of groups that have a record
        for group, meta in (*batch.snapshots.items(), *batch.cuts.items()):
            changed[group] = self._record(group, batch).with_snapshot(meta)
        for group, meta in batch.installs.items():
            record = changed.get(group) or self._record(group, batch)
            changed[group] = record.with_installing(meta)
        for group, hard_state in batch.hard_states.items():
            record = changed.get(group) or self._record(group, batch)
            changed[group] = record.with_hard_state(hard_state)
        for group in batch.entries:
            if group not in changed and self.reader(group).record_position == NOWHERE:
                changed[group] = GroupRecord()  # without it the log would be read as damaged
        return changed

    def _record(self, group: GroupId, batch: LogBatch) -> GroupRecord:
        return GroupRecord() if group in batch.removed else self.reader(group).record

    def _group_record(
        self, group: GroupId, record: GroupRecord, reset: SnapshotMeta | None
    ) -> NewRecord:
        value = group_value(group, record)
        if reset is not None:
            return NewRecord(group, reset.index, reset.term, 0, RESET, value)
        log = self._logs.get(group)
        last = Index(0) if log is None else log.last_index()
        term = Term(0) if log is None else log.term(last) or Term(0)
        return NewRecord(group, last, term, 0, GROUP, value)

    def _encode_entries(self, batch: LogBatch, records: list[NewRecord]) -> None:
        segments, logs, snapshots = self._segments, self._logs, batch.snapshots
        sealing = segments.cipher is not None
        for group, entries in batch.entries.items():
            first = entries[0].index
            replaced = snapshots.get(group) if snapshots else None
            if replaced is not None:
                start, last, before = replaced.index, replaced.index, replaced.term
            else:
                start, last, before = (logs.get(group) or self.reader(group)).place_before(first)
            if not start < first <= last + 1:
                raise InvariantViolation(
                    f"group {group}: entry {first} does not fit a log from {start + 1} to {last}"
                )
            for entry in entries:
                data = segments.sealed(group, entry) if sealing else entry.data
                records.append(NewRecord(group, entry.index, entry.term, before, entry.kind, data))
                before = entry.term

    def _note(
        self, batch: LogBatch, changed: dict[GroupId, GroupRecord], positions: list[int]
    ) -> None:
        """The batch is written: update the logs."""
        at = len(batch.removed)
        for group in batch.removed:
            self._logs.pop(group, None)
            self._damaged.pop(group, None)
            self._dirty.discard(group)
        for group, meta in batch.snapshots.items():
            self.reader(group).reset(meta)
        for group, meta in batch.cuts.items():
            self.reader(group).compacted(meta)
        for group, record in changed.items():
            log = self.reader(group)
            log.record = record
            log.record_position = log.newest = positions[at]
            at += 1
        logs = self._logs
        for group, entries in batch.entries.items():
            log = logs.get(group) or self.reader(group)
            if len(entries) == 1:
                log.appended_one(entries[0], positions[at])
                at += 1
            else:
                log.appended(entries, positions[at : at + len(entries)])
                at += len(entries)
            log.newest = positions[at - 1]
        self._dirty.update(changed, batch.entries)

    def quarantine(self, error: DamagedLog, hard_state: HardState | None, last: Index) -> None:
        """Migration: this group, which is not in this log yet, has lost entries in the old one.
        Raises OSError."""
        group, known = error.group, hard_state or HardState()
        self._promises.reserve(group)
        promise = KeptPromise(self._segments.end + 1, known.term, known.vote, known.lives, last)
        self._promises.note([(group, promise)])
        self._promises.sync()
        self._damaged[group] = DamagedGroup(error, hard_state)

    def give_up(self, group: GroupId, applied: Index = NO_INDEX) -> GroupLog:
        """Delete the entries and keep the promises: the member counts as one that has lost its log
        (HardState.lives). The new log starts after the `applied` entry if that is known, otherwise
        at the beginning. Written, not flushed. Raises DamagedLog if its promises are unknown: then
        this member must not take part. Also raises SegmentBusy, OSError."""
        self.flushes.check()
        damaged = self._damaged.get(group)
        hard_state = self.reader(group).hard_state() if damaged is None else damaged.hard_state
        if hard_state is None or not self.exists(group):
            raise DamagedLog(group, Index(0), "there is no group record")
        meta = _position(self._logs.get(group) if damaged is None else damaged.log, applied)
        record = GroupRecord(hard_state.after_loss(), meta)
        with self._segments.lock:
            new = NewRecord(group, meta.index, meta.term, 0, RESET, group_value(group, record))
            (position,) = self._segments.write([new])
            self._damaged.pop(group, None)
            log = self._logs[group] = GroupLog(group, self._segments)
            log.restore_record(record, position=position, origin=position)
            self._dirty.add(group)
        self._allocator.something_died()
        return log

    # flushing

    def flush(self) -> None:
        """Blocking: everything written before the call is on disk after it, and remembered as
        promised. Raises OSError; then nothing is accepted any more."""
        self.flushes.run()

    def _take_promises(self) -> list[tuple[GroupId, KeptPromise]]:
        """The promises of the groups with records since the last flush."""
        dirty, self._dirty = self._dirty, set()
        logs = self._logs
        taken: list[tuple[GroupId, KeptPromise]] = []
        for group in dirty:
            log = logs.get(group)
            if log is not None:
                taken.append((group, _promise(log)))
        return taken

    def tick(self, *, short: bool = False, stored_bytes: int = 0) -> None:
        """Called at short, regular intervals: background work starts here. `short`: the disk is
        full, so keep only what is needed. `stored_bytes`: size of the state, to which the size of
        an idle log is proportional."""
        self._sizing.tick(stored_bytes=stored_bytes, groups=len(self._logs))
        self._allocator.sizes = self._sizing.now
        self._allocator.short = short
        self._allocator.tick()
        self._ticks += 1
        if self._ticks % _SYNC_TICKS == 0 and self._promises.unsynced:
            self._jobs.submit(self._sync_promises)

    def _sync_promises(self) -> None:
        try:
            self.flush_all()
        except OSError as error:
            _log.error("the promises cannot be flushed: %s", error)  # the next write fails

    def rewrite(self) -> None:
        """Blocking: afterwards no file holds an entry that was deleted before. Raises OSError."""
        self._allocator.rewrite()

    # LiveRecords

    def live_in(self, segment: LogSegment) -> list[LiveRecord]:
        start, end = segment.start_position, segment.end_position
        found: list[LiveRecord] = []
        for number, highest in segment.groups.items():
            group = GroupId(number)
            log = self._logs.get(group)
            if log is not None:
                if start <= log.record_position < end:
                    size = len(group_value(group, log.record))
                    found.append(LiveRecord(group, 0, log.record_position, size))
                found.extend(
                    LiveRecord(group, index, position, size)
                    for index, position, size in log.entries_between(start, end, highest)
                )
            damaged = self._damaged.get(group)
            if damaged is not None:
                found.extend(r for at, r in damaged.records.items() if start <= at < end)
        return found

    def is_alive(self, record: LiveRecord) -> bool:
        group = GroupId(record.group)
        damaged = self._damaged.get(group)
        if damaged is not None:
            return record.position in damaged.records
        log = self._logs.get(group)
        if log is None:
            return False
        if record.index == 0:
            return log.record_position == record.position
        return log.is_at(Index(record.index), record.position)

    def was_moved(self, record: LiveRecord, position: int) -> None:
        group = GroupId(record.group)
        damaged = self._damaged.get(group)
        if damaged is not None:
            del damaged.records[record.position]
            damaged.records[position] = LiveRecord(group, record.index, position, record.size)
        elif record.index == 0:
            self._logs[group].record_position = position
        else:
            self._logs[group].moved(Index(record.index), position)

    def is_damaged(self, record: LiveRecord) -> None:
        group = GroupId(record.group)
        _log.error("entry %d of group %d is damaged in the log", record.index, group)
        damaged = self._damaged.get(group)
        if damaged is not None:
            del damaged.records[record.position]
        elif record.index:
            self._logs[group].moved(Index(record.index), NOWHERE)
        else:  # a group record is also in memory: write it again with the group's next batch
            self._rewrite_record(group)

    def _rewrite_record(self, group: GroupId) -> None:
        log = self._logs[group]
        (position,) = self._segments.write([self._group_record(group, log.record, None)])
        log.record_position = log.newest = position
        self._dirty.add(group)

    def flush_all(self) -> None:
        """Also the promises. Raises OSError; then nothing is accepted any more."""
        self.flush()
        try:
            self._promises.sync()
        except OSError as error:
            self.flushes.failure = error
            raise


def _position(log: GroupLog | None, applied: Index) -> SnapshotMeta:
    """The position of this entry, which is committed, if the log knows it."""
    term = None if log is None or not applied else log.term(applied)
    if log is None or term is None:
        return NO_SNAPSHOT
    return SnapshotMeta(applied, term, log.members_at(applied))


def _promise(log: GroupLog) -> KeptPromise:
    hard_state = log.record.hard_state
    return KeptPromise(log.newest, hard_state.term, hard_state.vote, hard_state.lives, log.last)


def _strictest(known: HardState | None, promise: KeptPromise | None) -> HardState | None:
    """Term and vote: of the two, the one that promised more."""
    if promise is None or not promise.term:
        return known
    if known is None or promise.term > known.term:
        lives = promise.lives if known is None else max(promise.lives, known.lives)
        return HardState(promise.term, promise.vote, Index(0), lives)
    vote = known.vote
    if promise.term == known.term:
        vote = promise.vote or vote
    return HardState(Term(known.term), vote, known.commit, max(known.lives, promise.lives))
