"""The logs of all groups of one node, in one RocksDB.

Owns: the database, its identity, column family "raft". One flush of the write-ahead log covers the
entries that all groups have written before.
May not touch: column family "state" beyond opening and flushing it (broker.store writes it, with
the write-ahead log off), the consensus rules, the event loop.
Spec: docs/ARCHITECTURE.md, "Storage". `write` holds the interpreter lock and stays on the
loop; `flush` (fsync) and `flush_state` release it and run on other threads (checked by
tests/raft/store/test_log_store.py).

Recovery: the write-ahead log is read in the mode that tolerates a torn tail and nothing else. A
tail that was never flushed was never promised, so losing it is correct; a bad record before the
end may have been promised, so the directory is refused rather than truncated."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from rocksdict import ColumnFamily, Rdict, WriteBatch
from rocksdict import WriteOptions as RocksWriteOptions

from raft.store import blob_garbage as garbage
from raft.store.database import StoreIdentity, StoreTuning, open_database
from raft.store.disk_space import DiskSpace
from raft.store.group_log import GroupLog
from raft.store.records import (
    KEY,
    DamagedLog,
    GroupRecord,
    StoreBusy,
    StoreError,
    StoreFailed,
    StoreFull,
    WrongDirectory,
    group_value,
    read_group,
)
from raft.store.rocks_batch import LAST_INDEX, encode_pieces, encode_records, rocks_write_batch
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


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    writes: int
    written_bytes: int
    flushes: int
    refusals: int
    healthy: bool
    failure: str | None


class LogStore:
    """Built by `open`. Everything except `flush` and `flush_state` belongs to one thread."""

    def __init__(
        self,
        path: Path,
        reopen_database: Callable[[], tuple[Rdict, StoreIdentity]],
        *,
        free_bytes_min: int = 0,
        flush_interval_s: float | None = None,
        new_batch: Callable[[], WriteBatch] = rocks_write_batch,
        space: DiskSpace | None = None,
    ) -> None:
        self.new_batch = new_batch
        self.flush_interval_s = flush_interval_s
        self.failure: BaseException | None = None
        self.full = False  # as of the last check_space: nothing is written, all can be read
        self._path = path
        self._reopen_database = reopen_database
        self._space = space or DiskSpace(path, free_bytes_min)
        db, self.identity = reopen_database()
        self._take(db)
        self._users: list[tuple[Callable[[], None], Callable[[Rdict], None]]] = []
        self._flushing = 0
        self._guard = threading.Lock()  # protects _flushing
        self._one_flush = threading.Lock()
        self._one_rewrite = threading.Lock()
        self._write_options = RocksWriteOptions()
        self._write_options.no_slowdown = True
        self._waiting_options = RocksWriteOptions()
        self._rewriting = self._closing = False
        self._writes = self._written_bytes = self._flushes = self._refusals = 0
        self._unchecked_bytes = 0
        self._begun: set[GroupId] = set()  # a refused batch may have left some of their entries

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
        opening = partial(
            open_database, place, node_name=node_name, cluster_name=cluster_name, tuning=tuning
        )
        return cls(
            place,
            opening,
            free_bytes_min=tuning.free_bytes_min,
            flush_interval_s=tuning.flush_interval_s,
        )

    def _take(self, db: Rdict) -> None:
        self.db = db
        self._columns: dict[str, Rdict] = {n: db.get_column_family(n) for n in ("raft", "state")}
        self._log_handle: ColumnFamily | None = db.get_column_family_handle("raft")
        self._logs: dict[GroupId, GroupLog] = {}

    def close(self) -> None:
        """Flush the log and close. Nothing may use the store or its columns afterwards. A store
        that has failed is closed without a flush."""
        self._closing = True
        if self._rewriting:  # end it; a database cannot be closed meanwhile, but may be left open
            if self.failure is None:
                self.db.flush_wal(sync=True)
            self.db.cancel_all_background(wait=False)
            return
        if self.failure is not None:
            self._let_go()
            return
        self.db.flush_wal(sync=True)
        self._logs.clear()
        self._log_handle = None
        for column in self._columns.values():
            column.close()
        self.db.close()

    # after a failure

    def attach(self, *, let_go: Callable[[], None], take: Callable[[Rdict], None]) -> None:
        """For code that keeps columns or handles of its own: `reopen` calls `let_go` to drop them
        and `take` with the new database."""
        self._users.append((let_go, take))

    def probe(self) -> None:
        """Blocking, on any thread. Raises OSError unless the disk works and has space again."""
        self._space.probe()

    def reopen(self) -> None:
        """Blocking. Close the failed database and open it as after a crash. What its log shows may
        be on the disk or only in the page cache, so all of it is in new, flushed files when this
        returns. Raises StoreBusy while a flush is in flight, StoreError when it cannot be opened,
        also because iterators keep the old one alive: then nothing can be read before the next
        attempt."""
        with self._guard:
            if self._flushing:
                raise StoreBusy("a flush is in flight")
        self._let_go()
        db, identity = self._reopen_database()
        if identity != self.identity:
            db.close()
            raise WrongDirectory(f"{self._path} now belongs to another server")
        self._take(db)
        self.failure = None
        try:
            for column in self._columns.values():
                column.flush(wait=True)
        except Exception as error:
            self.failure = error
            raise StoreFailed(f"flushing the log failed again: {error}") from error
        for _, take in self._users:
            take(db)

    def _let_go(self) -> None:
        """Close a failed database. That raises errors, which are ignored: what it still holds in
        memory was not promised."""
        self._logs.clear()
        self._log_handle = None
        users = [let_go for let_go, _ in self._users]
        for let_go in (*users, *(column.close for column in self._columns.values()), self.db.close):
            try:
                let_go()
            except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception
                _log.info("error while closing the failed database: %s", error)

    # columns

    def column(self, name: str) -> Rdict:
        """The Rdict of a column family ("raft" or "state"); raw mode, keys and values bytes."""
        return self._columns[name]

    def column_handle(self, name: str) -> ColumnFamily:
        """The handle that WriteBatch.put needs."""
        return self.db.get_column_family_handle(name)

    def state_column(self) -> Rdict:
        return self._columns["state"]

    # reading

    def groups(self) -> list[GroupId]:
        """Every group with a record; costs one seek per group."""
        found: list[GroupId] = []
        cursor = self._columns["raft"].iter()
        cursor.seek(KEY.pack(0, 0))
        while cursor.valid():
            group, _ = KEY.unpack(cursor.key())
            found.append(GroupId(group))
            if group == LAST_INDEX:
                break
            cursor.seek(KEY.pack(group + 1, 0))
        cursor.status()
        return found

    def exists(self, group: GroupId) -> bool:
        return self._columns["raft"].get(KEY.pack(group, 0)) is not None

    def reader(self, group: GroupId) -> GroupLog:
        """The group's log, read and checked completely at the first call. Raises DamagedLog."""
        log = self._logs.get(group)
        if log is None:
            log = GroupLog(group, self._columns["raft"])
            log.load()
            self._logs[group] = log
        return log

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

    def give_up_log(self, group: GroupId) -> GroupLog:
        """Delete the entries of a damaged log and keep its promises: the member counts as one that
        has lost its log (HardState.lives). Written, not flushed. Raises DamagedLog when the group
        record itself is damaged: what it promised is unknown, so it must not take part."""
        column = self._columns["raft"]
        value = column.get(KEY.pack(group, 0))
        if value is None:
            raise DamagedLog(group, Index(0), "there is no group record")
        record = GroupRecord(read_group(group, value).hard_state.after_loss())
        raw, handle = self.new_batch(), self._log_handle
        raw.delete_range(KEY.pack(group, 1), KEY.pack(group, LAST_INDEX), handle)
        raw.put(KEY.pack(group, 0), group_value(group, record), handle)
        self._logs.pop(group, None)
        self._write(raw, self._waiting_options)
        return self.reader(group)

    def check_space(self) -> bool:
        """Whether the disk has space, also for what is still in memtables. The host calls it at
        every tick; `_write` calls it after writing a lot, so that what is written between two
        checks fits into the reserve."""
        self._unchecked_bytes = 0
        if self.failure is None:
            self.full = self._space.is_short(self._buffered_bytes())
        return not self.full

    def _fits(self, batch: LogBatch) -> bool:
        """Whether a batch from before the disk was found full can still be written."""
        return not self._space.is_short(self._buffered_bytes() + batch.nbytes, last=True)

    def _buffered_bytes(self) -> int:
        return sum(c.property_int_value(_BUFFERED) or 0 for c in self._columns.values())

    def write(self, batch: LogBatch, *, may_wait: bool = False) -> None:
        """Write without flushing. Raises StoreBusy: write the same batch again later. Not raised
        with `may_wait`, which is for rare and small writes. StoreFull is a StoreBusy; it is not
        raised for batches that only free space. Raises StoreFailed until the store is reopened."""
        if self.failure is not None:
            raise StoreFailed("the log store has already failed") from self.failure
        grows = bool(batch.entries or batch.hard_states or batch.snapshots)
        if self.full and grows and not may_wait and not self._fits(batch):
            raise StoreFull("the disk is full")
        raw, records = encode_records(
            batch, self.new_batch(), reader=self.reader, column=self._log_handle
        )
        try:
            # The handle must not be in a local variable: an exception keeps this frame alive, and
            # a handle keeps the database open, which then cannot be reopened.
            for piece in encode_pieces(
                batch,
                raw,
                reader=self.reader,
                column=self._log_handle,
                begun=self._begun,
                new_batch=self.new_batch,
            ):
                self._write(piece, self._waiting_options if may_wait else self._write_options)
        except StoreBusy:
            self._begun.update(batch.entries)
            raise
        self._begun.difference_update(batch.entries)
        self._note(batch, records)

    def _write(self, raw: WriteBatch, options: RocksWriteOptions) -> None:
        size = raw.size_in_bytes()
        try:
            self.db.write(raw, options)
        except Exception as error:
            if "Write stall" in str(error):
                self._refusals += 1
                raise StoreBusy(
                    "the database has stalled writes until its memtables are flushed"
                ) from error
            self.failure = error
            raise StoreFailed(f"writing the log failed: {error}") from error
        self._writes += 1
        self._written_bytes += size
        self._unchecked_bytes += size
        if self._unchecked_bytes > self._space.stride:
            self.check_space()

    def write_state(self, raw: WriteBatch, options: RocksWriteOptions) -> None:
        """For the code that writes column "state". Raises StoreFailed."""
        try:
            self.db.write(raw, options)
        except Exception as error:
            self.failure = error
            raise StoreFailed(f"writing the state failed: {error}") from error

    def flush(self) -> None:
        """Blocking: everything written before the call is on disk after it."""
        # One at a time: the kernel reports a page that it could not write only once, so a second
        # flush beside a failing one might succeed without that page.
        with self._one_flush, self._keeping_open():
            try:
                self.db.flush_wal(sync=True)
            except Exception as error:
                self.failure = error
                raise StoreFailed(f"flushing the log failed: {error}") from error
        self._flushes += 1

    def flush_state(self) -> None:
        """Blocking: what broker.store wrote to column "state" before the call is on disk."""
        with self._keeping_open():
            try:
                self._columns["state"].flush(wait=True)
            except Exception as error:
                self.failure = error
                raise StoreFailed(f"flushing the state failed: {error}") from error

    @contextmanager
    def _keeping_open(self) -> Iterator[None]:
        """While a call runs on another thread, the database must not be closed. Raises StoreFailed:
        after a failure a flush proves nothing until the database is reopened."""
        with self._guard:
            if self.failure is not None:
                raise StoreFailed("the log store has already failed") from self.failure
            self._flushing += 1
        try:
            yield
        finally:
            with self._guard:
                self._flushing -= 1

    def expunge(self) -> None:
        """Blocking while the database is rewritten: afterwards no file holds what was deleted or
        overwritten before the call. What a reader's snapshot still shows stays until the next
        call."""
        with self._rewriting_files():
            for column in (self.db, *self._columns.values()):  # then no write-ahead log is needed
                column.flush(wait=True)
            for column in self._columns.values():
                garbage.rewrite(column)

    def is_wasteful(self) -> bool:
        """Whether `reclaim` is worth its cost."""
        return self.failure is None and any(map(garbage.is_wasteful, self._columns.values()))

    def reclaim(self) -> None:
        """Blocking while the wasteful columns are rewritten: frees their garbage."""
        with self._rewriting_files():
            for column in filter(garbage.is_wasteful, self._columns.values()):
                garbage.rewrite(column)

    @contextmanager
    def _rewriting_files(self) -> Iterator[None]:
        """One rewrite at a time; closing the store ends it early. Raises StoreFailed."""
        with self._one_rewrite:
            self._rewriting = True
            try:
                with self._keeping_open():
                    yield
            except StoreFailed:
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
            healthy=self.failure is None and not self.full,
            failure=self.trouble(),
        )

    def trouble(self) -> str | None:
        if self.failure is not None:
            return str(self.failure)
        return "the disk is full: nothing is acknowledged until it has space" if self.full else None

    def _note(self, batch: LogBatch, records: dict[GroupId, GroupRecord]) -> None:
        """The batch is written: update the logs."""
        for group in batch.removed:
            self._logs.pop(group, None)
        for group, meta in batch.snapshots.items():
            self._logs[group].reset(meta)
        for group, meta in batch.cuts.items():
            self._logs[group].compacted(meta)
        for group, record in records.items():
            self._logs[group].record = record
        for group, entries in batch.entries.items():
            self._logs[group].appended(entries)
