"""What a node has on disk: the logs of all groups in segments, and the database of their states.

Owns: both, their identity, when they count as full or failed, and reopening them.
May not touch: column family "state" beyond opening and flushing it (broker.store writes it, with
the write-ahead log off), the consensus rules, the event loop.
Spec: docs/ARCHITECTURE.md, "Storage". `write` takes microseconds and runs on the loop; `flush`
(fdatasync) and `flush_state` release the GIL and run on other threads (checked by
tests/raft/store/test_log_store.py)."""

from __future__ import annotations

import errno
import logging
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from rocksdict import ColumnFamily, Rdict, WriteBatch
from rocksdict import WriteOptions as RocksWriteOptions

from raft.store import blob_garbage as garbage
from raft.store.database import (
    StoreIdentity,
    StoreTuning,
    condemn,
    corruption,
    has_log,
    note_log,
    open_database,
)
from raft.store.disk_space import DiskFacts, DiskSpace, Space
from raft.store.group_log import GroupLog
from raft.store.large_values import LargeValues, NoLargeValues, ValuesPlace
from raft.store.log_flush import FlushJob, SyncInFlight
from raft.store.migration import migrate, remove_unfinished
from raft.store.node_log import NO_INDEX, LogPlace, NodeLog
from raft.store.records import (
    DamagedDatabase,
    DamagedLog,
    StoreBusy,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreStatistics,
    WrongDirectory,
)
from raft.store.segments.background_jobs import JobThread
from raft.store.segments.files import DiskFiles, LogFiles
from raft.store.segments.log import SegmentBusy
from raft.store.write_batch import LogBatch
from raft.types import GroupId, HardState, Index, SnapshotMeta

__all__ = [
    "DamagedLog",
    "LogStore",
    "StoreBusy",
    "StoreError",
    "StoreFailed",
    "StoreFull",
    "StoreIdentity",
    "StoreStatistics",
    "StoreTuning",
    "WrongDirectory",
]

_log = logging.getLogger("raft.store")
_BUFFERED: Final = "rocksdb.cur-size-all-mem-tables"
_SMALL_BYTES: Final = 64 << 10  # on a full disk, such a batch may use the reserve of a segment
CLOSE_WITHIN_S: Final = 30.0  # a flush in flight may delay the end of the process this long


class LogStore:
    """Built by `open`. Everything except `flush` and `flush_state` belongs to one thread."""

    def __init__(
        self,
        path: Path,
        reopen_database: Callable[[], tuple[Rdict, StoreIdentity]],
        *,
        tuning: StoreTuning,
        new_batch: Callable[[], WriteBatch] = partial(WriteBatch, raw_mode=True),  # noqa: B008
        space: DiskSpace | None = None,
        place: LogPlace | None = None,
        value_files: LogFiles | None = None,
    ) -> None:
        """`new_batch`, `space`, `place` and `value_files` are for a simulated disk."""
        self.new_batch, self.cipher = new_batch, tuning.cipher
        self.flush_interval_s = tuning.flush_interval_s
        self.failure: BaseException | None = None
        self.space = Space.AMPLE  # as of the last check_space
        self._refused = False  # the last write had no space
        self._path, self._reopen_database = path, reopen_database
        self._disk = space or DiskSpace(path, tuning.reserve_percent)
        self._segment_sizes = tuning.segment_sizes()
        self._place = place or LogPlace(
            segments=DiskFiles(path / "segments"),
            promises=DiskFiles(path / "promises"),
            jobs=JobThread,
            draw_salt=lambda: secrets.randbits(64),
            space=self._disk.level,
            cipher=tuning.cipher,
        )
        self.values_place = ValuesPlace.of(value_files, path / "values", tuning.value_file_bytes)
        self.values: LargeValues = NoLargeValues()  # set by the owner of column "state"
        self._users: list[tuple[Callable[[], None], Callable[[Rdict], None]]] = []
        self._in_use = 0
        self._syncing = False  # between begin_flush and end_flush
        self._guard = threading.Lock()  # protects _in_use
        self._unused = threading.Condition(self._guard)
        self._one_rewrite = threading.Lock()
        self._rewriting = self._closing = False
        self._compacted = -1  # the number of writes that the last compaction on a full disk saw
        self._writes = self._written_bytes = self._flushes = self._refusals = 0
        self._unchecked_bytes = 0
        db, self.identity = reopen_database()
        try:
            self.log = self._open_log(db)
        except BaseException:
            db.close()
            raise
        self._take(db)

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        node_name: str,
        cluster_name: str,
        tuning: StoreTuning = StoreTuning(),  # noqa: B008 - frozen
    ) -> LogStore:
        """Blocking. Raises WrongDirectory when the directory belongs to another server, StoreError
        when it cannot be opened, for example because another process has locked it."""
        place = Path(path)
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        tuning = tuning.for_disk(DiskSpace(place, tuning.reserve_percent).facts().total_bytes)
        opening = partial(
            open_database, place, node_name=node_name, cluster_name=cluster_name, tuning=tuning
        )
        return cls(place, opening, tuning=tuning)

    def _open_log(self, db: Rdict, trusted_end: int | None = None) -> NodeLog:
        """Raises StoreError."""
        try:
            place = self._place
            remove_unfinished(self.identity, place.segments, place.promises)
            begun = has_log(db)
            if begun and not place.segments.names() and not place.promises.names():
                # Without them this node would not know its votes.
                raise DamagedDatabase(f"{self._path}: the log and the promises are missing")
            log = NodeLog(self._place, self._segment_sizes, trusted_end=trusted_end)
            try:
                self.identity = migrate(db, self.identity, log)
                if not begun:
                    note_log(db)
            except BaseException:
                log.close()
                raise
        except OSError as error:
            raise StoreError(f"{self._path}: the log cannot be opened: {error}") from error
        return log

    def _take(self, db: Rdict) -> None:
        self.db = db
        self._state = db.get_column_family("state")

    def close(self) -> None:
        """Flush the log and close. Nothing may use the store or its columns afterwards. A store
        that has failed is closed without a flush."""
        self._closing = True
        if self.failure is None:
            self.log.flush_all()
        self.log.close()
        rewriting = self._rewriting
        if rewriting:
            self.db.cancel_all_background(wait=False)  # makes a rewrite end early
        if rewriting or self.failure is None:
            with self._guard:  # a flush on another thread may have been cancelled, but still runs
                if not self._unused.wait_for(lambda: not self._in_use, CLOSE_WITHIN_S):
                    return  # it cannot be closed now: the end of the process will close it
        self._let_go()

    # after a failure

    def attach(self, *, let_go: Callable[[], None], take: Callable[[Rdict], None]) -> None:
        """For code that keeps columns or handles of its own: `reopen` calls `let_go` to drop them
        and `take` with the new database."""
        self._users.append((let_go, take))

    @property
    def damage(self) -> str | None:
        """Corruption that RocksDB found in one of its files. Reopening would find it again."""
        return corruption(self.failure)

    def condemn(self) -> None:
        """Blocking: a database with damage is not opened again. Raises OSError."""
        condemn(self._path, self.damage or "")

    def probe(self) -> None:
        """Blocking, on any thread. Raises OSError unless the disk works and has space again."""
        self._disk.probe()

    def reopen(self) -> None:
        """Blocking. Close the failed store and open it as after a crash. What the log shows after
        its last flush may be on disk or only in the page cache, so it is copied to a new, flushed
        segment before this returns. Raises StoreBusy while a flush is in flight, and StoreError if
        the store cannot be opened, for example because iterators keep the old database open:
        nothing can be read then until the next attempt."""
        with self._guard:
            if self._in_use or self._syncing:
                raise StoreBusy("a flush is in flight")
        trusted_end = self.log.trusted_end
        self._let_go()
        db, identity = self._reopen_database()
        if identity != self.identity:
            db.close()
            raise WrongDirectory(f"{self._path} now belongs to another server")
        try:
            self.log = self._open_log(db, trusted_end)
        except BaseException:
            db.close()
            raise
        self._take(db)
        self.failure = None
        for _, take in self._users:
            take(db)

    def _let_go(self) -> None:
        """Close without reporting errors: what is only in memory was not promised."""
        users = [let_go for let_go, _ in self._users]
        for let_go in (*users, self.log.close, self._state.close, self.db.close):
            try:
                let_go()
            except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
                _log.info("error while closing the store: %s", error)

    # the state

    def column_handle(self, name: str) -> ColumnFamily:
        """The handle that WriteBatch.put needs."""
        return self.db.get_column_family_handle(name)

    def state_column(self) -> Rdict:
        """Column family "state"; raw mode, keys and values bytes."""
        return self._state

    # reading

    def groups(self) -> list[GroupId]:
        """Every group with a record."""
        return self.log.groups()

    def exists(self, group: GroupId) -> bool:
        return self.log.exists(group)

    def reader(self, group: GroupId) -> GroupLog:
        """The group's log. Raises DamagedLog."""
        return self.log.reader(group)

    def hard_state(self, group: GroupId) -> HardState:
        return self.reader(group).hard_state()

    # batches

    def compact(self, batch: LogBatch, group: GroupId, upto: Index) -> None:
        """Delete the entries up to and including `upto`, which must be in the log."""
        log = self.reader(group)
        term = log.term(upto)
        if term is None:
            raise StoreError(f"group {group}: cannot cut the log at {upto}, which is not in it")
        batch.cut(group, SnapshotMeta(upto, term, log.members_at(upto)))

    def give_up_log(self, group: GroupId, applied: Index = NO_INDEX) -> GroupLog:
        """Delete the entries of a damaged log and keep its promises: the member counts as one that
        has lost its log (HardState.lives). The log then starts after the `applied` entry, if the
        rest of the log still contains it, otherwise at the beginning. Written, not flushed. Raises
        DamagedLog if neither the log nor the promises file says what was promised: then this member
        must not take part."""
        try:
            return self.log.give_up(group, applied)
        except OSError as error:
            raise self._failed("writing the log", error) from error

    @property
    def in_need(self) -> bool:
        """Whether logs should be compacted now: the disk is full, or the log has grown large."""
        return self.full or self.log.nbytes > self.log.goal_bytes

    def is_pressed(self, group: GroupId) -> bool:
        """Whether the log has grown large, and entries of this group keep its oldest segment."""
        return self.log.is_pressed(group)

    def check_space(self) -> Space:
        """How much space the disk has, besides what is still in memtables. The host calls it at
        every tick; `write` calls it after writing a lot, so that what is written between two checks
        fits into the reserve."""
        self._unchecked_bytes = 0
        if self.failure is None:
            coming = self._buffered_bytes()
            level = self._disk.level(coming)
            if self.full and level is Space.AMPLE:  # hysteresis: it would soon be full again
                level = max(Space.SHORT, self._disk.level(coming + self._disk.margin))
            if self.log.trouble is not None and self.log.trouble.errno == errno.ENOSPC:
                level = Space.NONE
            self.space = level
            self._refused &= level < Space.AMPLE
            stored = coming + garbage.stored_bytes(self._state) + self.values.living_bytes
            self.log.tick(short=self.full, stored_bytes=stored)
        return self.space

    @property
    def full(self) -> bool:
        """Whether only entries that free space, and small ones, are accepted. Everything can be
        read."""
        return self.space < Space.AMPLE

    @property
    def exhausted(self) -> bool:
        """Nothing can be promised any more, until there is space."""
        return self.space is Space.NONE or self._refused

    @property
    def log_goal_bytes(self) -> int:
        """Above this size of the log, entries are kept only while they are needed."""
        return self.log.goal_bytes

    def disk_facts(self) -> DiskFacts:
        return self._disk.facts()

    def _fits(self, batch: LogBatch) -> bool:
        """Whether a batch from before the disk was found full can still be written."""
        return self._disk.level(self._buffered_bytes() + batch.nbytes) >= Space.SCARCE

    def _buffered_bytes(self) -> int:
        return self._state.property_int_value(_BUFFERED) or 0

    def write(self, batch: LogBatch, *, may_wait: bool = False) -> None:
        """Write without flushing. Raises StoreBusy: write the same batch again later. Not raised
        with `may_wait`, which is for rare and small writes. StoreFull is a StoreBusy; it is not
        raised for batches that only free space. Raises StoreFailed until the store is reopened."""
        if self.failure is not None:
            raise StoreFailed("the log store has already failed") from self.failure
        grows, full = bool(batch.entries or batch.hard_states or batch.snapshots), self.full
        if full and grows and not may_wait and not self._fits(batch):
            self._refused = True
            raise StoreFull("the disk is full")
        frees = not grows or (full and batch.nbytes <= _SMALL_BYTES)
        log = self.log
        try:
            size = log.write_when_ready(batch) if may_wait else log.write(batch, frees=frees)
        except SegmentBusy as busy:
            self._refusals += 1
            trouble = log.trouble
            if trouble is None:
                raise
            if trouble.errno != errno.ENOSPC:
                raise self._failed("writing the log", trouble) from busy
            self._refused = True
            raise StoreFull("the disk has no space for the log") from busy
        except OSError as error:
            raise self._failed("writing the log", error) from error
        self._refused = False
        self._writes += 1
        self._written_bytes += size
        self._unchecked_bytes += size
        if self._unchecked_bytes > self._disk.stride:
            self.check_space()

    def _failed(self, doing: str, error: OSError) -> StoreFailed:
        """An error of the operating system is final until the store is reopened."""
        self.failure = error
        return StoreFailed(f"{doing} failed: {error}")

    def write_state(self, raw: WriteBatch, options: RocksWriteOptions) -> None:
        """For the code that writes column "state". Raises StoreFailed."""
        try:
            self.db.write(raw, options)
        except Exception as error:
            self.failure = error
            raise StoreFailed(f"writing the state failed: {error}") from error

    def flush(self) -> None:
        """Blocking: everything written before the call is on disk after it."""
        with self.keep_open():
            try:
                self.log.flush()
            except OSError as error:
                raise self._failed("flushing the log", error) from error
        self._flushes += 1

    def begin_flush(self, beside: SyncInFlight) -> FlushJob | None:
        """As LogFlush.begin. Raises StoreFailed."""
        if self.failure is not None:
            raise StoreFailed("the log store has already failed") from self.failure
        begun = self.log.flushes.begin(beside)
        self._syncing = begun is not None
        return begun

    def end_flush(self, job: FlushJob, number: int) -> None:
        """As LogFlush.end. Raises StoreFailed."""
        self._syncing = False
        try:
            self.log.flushes.end(job, number)
        except OSError as error:
            raise self._failed("flushing the log", error) from error
        self._flushes += 1

    def flush_state(self) -> None:
        """Blocking: what broker.store wrote to column "state" before the call is on disk."""
        with self.keep_open():
            doomed = self.values.doomed()
            try:
                self._state.flush(wait=True)
            except Exception as error:
                self.failure = error
                raise StoreFailed(f"flushing the state failed: {error}") from error
            self.values.remove(doomed)

    @contextmanager
    def keep_open(self) -> Iterator[None]:
        """While a call runs on another thread, the database must not be closed. Raises StoreFailed:
        after a failure a flush proves nothing until the database is reopened."""
        with self._guard:
            if self.failure is not None:
                raise StoreFailed("the log store has already failed") from self.failure
            self._in_use += 1
        try:
            yield
        finally:
            with self._guard:
                self._in_use -= 1
                self._unused.notify_all()

    def expunge(self) -> None:
        """Secure erase. Blocks while the database is rewritten; afterwards no file contains what
        was deleted or overwritten before the call. What a reader's snapshot still refers to stays
        until the next call. Raises StoreFull if there is no space for that."""
        with self._rewriting_files():
            self.log.rewrite()
            for column in (self.db, self._state):  # then no write-ahead log is needed
                column.flush(wait=True)
            if not garbage.rewrite(self._state, self._disk.facts()):
                raise StoreFull("the disk has no space for rewriting the database")

    def is_wasteful(self) -> bool:
        """Whether `reclaim` is worth its cost."""
        if self.failure is not None:
            return False
        changed = self.full and self.db.latest_sequence_number() != self._compacted
        return changed or garbage.is_wasteful(self._state, self._disk.facts())

    def reclaim(self) -> None:
        """Free the garbage of the state; blocks while it is rewritten. On a full disk this includes
        garbage that the database has not counted yet."""
        with self._rewriting_files():
            if self.full:
                self._compacted = self.db.latest_sequence_number()
                self._state.flush(wait=True)
                self._state.compact_range(None, None)
            facts = self._disk.facts()
            if garbage.is_wasteful(self._state, facts):
                garbage.rewrite(self._state, facts)

    @contextmanager
    def _rewriting_files(self) -> Iterator[None]:
        """One rewrite at a time; closing the store ends it early. Raises StoreFailed."""
        with self._one_rewrite:
            self._rewriting = True
            try:
                with self.keep_open():
                    yield
            except (StoreFailed, StoreFull):
                raise
            except Exception as error:
                if not self._closing:
                    self.failure = error
                    raise StoreFailed(f"rewriting the database failed: {error}") from error
            finally:
                self._rewriting = False

    def statistics(self) -> StoreStatistics:
        return StoreStatistics(
            writes=self._writes,
            written_bytes=self._written_bytes,
            flushes=self._flushes,
            refusals=self._refusals,
            healthy=self.trouble() is None,
            failure=self.trouble(),
        )

    def trouble(self) -> str | None:
        if self.failure is not None:
            return str(self.failure)
        full = "the disk is full: nothing is acknowledged until it has space"
        return full if self.exhausted else None
