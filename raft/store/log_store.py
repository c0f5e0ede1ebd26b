"""The logs of all groups of one node, in one RocksDB.

Owns: the database, its identity, column family "raft", and the rule that one flush of
the write-ahead log covers every group's entries of a moment.
May not touch: column family "state" beyond opening and flushing it (broker.store writes it, with
the write-ahead log off), the consensus rules, the event loop.
Spec: DESIGN section 5. `write` holds the interpreter lock and stays on the loop; `flush` and
`flush_state` release it and run on the storage thread (pinned by tests/raft/test_store.py).

Recovery: the write-ahead log is read in the mode that forgives a torn tail and nothing else. A
tail that was never flushed was never promised, so losing it is right; a bad record before the
end may have been promised, so the directory is refused rather than shortened."""

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
from raft.store.disk_space import Room
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
    entry_value,
    group_value,
    read_group,
)
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
_LAST_INDEX: Final = 2**64 - 1
_PIECE_BYTES: Final = 32 << 10  # RocksDB moves what a write holds each time it outgrows its room
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
    """Built by `open`. Everything but `flush` and `flush_state` belongs to one thread."""

    def __init__(
        self,
        path: Path,
        open_again: Callable[[], tuple[Rdict, StoreIdentity]],
        *,
        free_bytes_min: int = 0,
        flush_interval_s: float | None = None,
    ) -> None:
        self.flush_interval_s = flush_interval_s
        self.failure: BaseException | None = None
        self.full = False  # by the last check_space: nothing is written, all can be read
        self._path = path
        self._open_again = open_again
        self._room = Room(path, free_bytes_min)
        db, self.identity = open_again()
        self._take(db)
        self._users: list[tuple[Callable[[], None], Callable[[Rdict], None]]] = []
        self._flushing = 0
        self._guard = threading.Lock()  # of _flushing
        self._one_flush = threading.Lock()
        self._one_rewrite = threading.Lock()
        self._write_options = RocksWriteOptions()
        self._write_options.no_slowdown = True
        self._patient = RocksWriteOptions()
        self._rewriting = self._closing = False
        self._writes = self._written_bytes = self._flushes = self._refusals = 0
        self._unchecked_bytes = 0
        self._begun: set[GroupId] = set()  # a refused batch may have left some entries of theirs

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        node_name: str,
        cluster_name: str,
        tuning: StoreTuning = StoreTuning(),  # noqa: B008 - frozen
    ) -> LogStore:
        """Blocking. Raises WrongDirectory when the directory is somebody else's, StoreError
        when it cannot be read, e.g. because another process holds it."""
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
        """Flushes the log; nothing may use the store or its columns afterwards. A store that has
        failed is only let go."""
        self._closing = True
        if self._rewriting:  # it gives up; the database cannot be closed then, but may be left
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
        """For who keeps columns or handles of his own: `reopen` tells him to drop them, and
        gives him the new database."""
        self._users.append((let_go, take))

    def probe(self) -> None:
        """Blocking, on any thread. Raises OSError unless the disk works and has room again."""
        self._room.probe()

    def reopen(self) -> None:
        """Blocking. Let the failed database go and open it as after a crash: what its log shows
        may be on the disk or only in the page cache, so all of it is in new, flushed files when
        this returns. Raises StoreBusy while a flush is under way, StoreError when it cannot be
        opened, also because iterators keep the old one alive: then nothing can be read before
        the next attempt."""
        with self._guard:
            if self._flushing:
                raise StoreBusy("a flush is under way")
        self._let_go()
        db, identity = self._open_again()
        if identity != self.identity:
            db.close()
            raise WrongDirectory(f"{self._path} is not the directory it was")
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
        """Close what has failed: it complains of that, and what it still holds was not promised."""
        self._logs.clear()
        self._log_handle = None
        users = [let_go for let_go, _ in self._users]
        for let_go in (*users, *(column.close for column in self._columns.values()), self.db.close):
            try:
                let_go()
            except Exception as error:  # noqa: BLE001 - rocksdict has no narrower one
                _log.info("closing the failed database: %s", error)

    # columns

    def column(self, name: str) -> Rdict:
        """The Rdict of a column family ("raft" or "state"); raw mode, keys and values bytes."""
        return self._columns[name]

    def column_handle(self, name: str) -> ColumnFamily:
        """What WriteBatch.put wants to be told."""
        return self.db.get_column_family_handle(name)

    def state_column(self) -> Rdict:
        return self._columns["state"]

    # reading

    def groups(self) -> list[GroupId]:
        """Every group with a record, by one seek per group."""
        found: list[GroupId] = []
        cursor = self._columns["raft"].iter()
        cursor.seek(KEY.pack(0, 0))
        while cursor.valid():
            group, _ = KEY.unpack(cursor.key())
            found.append(GroupId(group))
            if group == _LAST_INDEX:
                break
            cursor.seek(KEY.pack(group + 1, 0))
        cursor.status()
        return found

    def exists(self, group: GroupId) -> bool:
        return self._columns["raft"].get(KEY.pack(group, 0)) is not None

    def reader(self, group: GroupId) -> GroupLog:
        """The group's log, read and checked whole at the first call. Raises DamagedLog."""
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
        """Forget entries up to and with `upto`, which must be in the log."""
        log = self.reader(group)
        term = log.term(upto)
        if term is None:
            raise StoreError(f"group {group}: cannot cut the log at {upto}, it is not there")
        batch.cut(group, SnapshotMeta(upto, term, log.members_at(upto)))

    def give_up_log(self, group: GroupId) -> GroupLog:
        """Forget the entries of a damaged log and keep its promises: the member has lost its
        log from now on (raft.member). Written, not flushed. Raises DamagedLog when the group
        record itself is damaged: what it promised is not known, so it must stay away."""
        column = self._columns["raft"]
        value = column.get(KEY.pack(group, 0))
        if value is None:
            raise DamagedLog(group, Index(0), "there is no group record")
        record = GroupRecord(read_group(group, value).hard_state.after_loss())
        raw, handle = WriteBatch(raw_mode=True), self._log_handle
        raw.delete_range(KEY.pack(group, 1), KEY.pack(group, _LAST_INDEX), handle)
        raw.put(KEY.pack(group, 0), group_value(group, record), handle)
        self._logs.pop(group, None)
        self._write(raw, self._patient)
        return self.reader(group)

    def check_space(self) -> bool:
        """Whether the disk has room, also for what is still in memory and will be written by
        itself. To be asked now and then; who writes much asks by himself, so that what is written
        between two calls fits into the reserve."""
        self._unchecked_bytes = 0
        if self.failure is None:
            self.full = self._room.is_short(self._buffered_bytes())
        return not self.full

    def _fits(self, batch: LogBatch) -> bool:
        """What was taken before the disk was found full should still be answered."""
        return not self._room.is_short(self._buffered_bytes() + batch.nbytes, last=True)

    def _buffered_bytes(self) -> int:
        return sum(c.property_int_value(_BUFFERED) or 0 for c in self._columns.values())

    def write(self, batch: LogBatch, *, may_wait: bool = False) -> None:
        """Write without flushing. Raises StoreBusy (the batch stays good and is to be written
        again; not with may_wait, which is for rare and small writes), its kind StoreFull (not for
        what only frees space) or StoreFailed (until it is opened anew)."""
        if self.failure is not None:
            raise StoreFailed("the log store has failed before") from self.failure
        grows = bool(batch.entries or batch.hard_states or batch.snapshots)
        if self.full and grows and not may_wait and not self._fits(batch):
            raise StoreFull("the disk is full")
        raw, records = self._build(batch)
        try:
            for piece in self._pieces(batch, raw):
                self._write(piece, self._patient if may_wait else self._write_options)
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
                raise StoreBusy("the database is behind with its flushes") from error
            self.failure = error
            raise StoreFailed(f"writing the log failed: {error}") from error
        self._writes += 1
        self._written_bytes += size
        self._unchecked_bytes += size
        if self._unchecked_bytes > self._room.stride:
            self.check_space()

    def write_state(self, raw: WriteBatch, options: RocksWriteOptions) -> None:
        """For who fills column "state". Raises StoreFailed."""
        try:
            self.db.write(raw, options)
        except Exception as error:
            self.failure = error
            raise StoreFailed(f"writing the state failed: {error}") from error

    def flush(self) -> None:
        """Blocking: everything written before the call is on disk after it."""
        # One at a time: the kernel tells of a page that it could not write only once, so a second
        # flush beside one that fails might succeed without what the first has left out.
        with self._one_flush, self._under_way():
            try:
                self.db.flush_wal(sync=True)
            except Exception as error:
                self.failure = error
                raise StoreFailed(f"flushing the log failed: {error}") from error
        self._flushes += 1

    def flush_state(self) -> None:
        """Blocking: what broker.store wrote to column "state" before the call is on disk."""
        with self._under_way():
            try:
                self._columns["state"].flush(wait=True)
            except Exception as error:
                self.failure = error
                raise StoreFailed(f"flushing the state failed: {error}") from error

    @contextmanager
    def _under_way(self) -> Iterator[None]:
        """A call on another thread that the database must outlive. Raises StoreFailed: after a
        failure no flush means anything until the database is opened anew."""
        with self._guard:
            if self.failure is not None:
                raise StoreFailed("the log store has failed before") from self.failure
            self._flushing += 1
        try:
            yield
        finally:
            with self._guard:
                self._flushing -= 1

    def expunge(self) -> None:
        """Blocking, for as long as rewriting the database takes: no file holds what was deleted
        or overwritten before the call. What a reader's snapshot still shows stays until the
        next time."""
        with self._rewriting_files():
            for column in (self.db, *self._columns.values()):  # then no write-ahead log is needed
                column.flush(wait=True)
            for column in self._columns.values():
                garbage.rewrite(column)

    def is_wasteful(self) -> bool:
        """Whether `reclaim` is worth its trouble."""
        return self.failure is None and any(map(garbage.is_wasteful, self._columns.values()))

    def reclaim(self) -> None:
        """Blocking, for as long as rewriting the wasteful columns takes: frees their garbage."""
        with self._rewriting_files():
            for column in filter(garbage.is_wasteful, self._columns.values()):
                garbage.rewrite(column)

    @contextmanager
    def _rewriting_files(self) -> Iterator[None]:
        """Raises StoreFailed; closing the store ends it early."""
        with self._one_rewrite:
            self._rewriting = True
            try:
                with self._under_way():
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
        return (
            "the disk is full: nothing is acknowledged until space returns" if self.full else None
        )

    def _build(self, batch: LogBatch) -> tuple[WriteBatch, dict[GroupId, GroupRecord]]:
        """All but the entries, as RocksDB's batch (consumed by one attempt to write it), and the
        changed group records."""
        raw = WriteBatch(raw_mode=True)
        handle = self._log_handle
        records: dict[GroupId, GroupRecord] = {}
        for group in batch.removed:
            raw.delete_range(KEY.pack(group, 0), KEY.pack(group, _LAST_INDEX), handle)
        for group, meta in batch.snapshots.items():
            raw.delete_range(KEY.pack(group, 1), KEY.pack(group, _LAST_INDEX), handle)
            records[group] = self.reader(group).record.with_snapshot(meta)
        for group, meta in batch.cuts.items():
            log = self.reader(group)
            raw.delete_range(
                KEY.pack(group, log.first_index()), KEY.pack(group, meta.index + 1), handle
            )
            records[group] = log.record.with_snapshot(meta)
        for group, meta in batch.installs.items():
            record = records.get(group) or self.reader(group).record
            records[group] = record.with_installing(meta)
        for group, hard_state in batch.hard_states.items():
            record = records.get(group) or self.reader(group).record
            records[group] = record.with_hard_state(hard_state)
        for group in batch.entries:
            log = self.reader(group)
            if group not in records and log.last_index() == 0:
                records[group] = log.record  # a log without its record reads as damage
        for group, record in records.items():
            raw.put(KEY.pack(group, 0), group_value(group, record), handle)
        return raw, records

    def _pieces(self, batch: LogBatch, raw: WriteBatch) -> Iterator[WriteBatch]:
        """What is to be written one after the other: `raw`, and the entries. A crash between two
        pieces leaves a prefix of the new entries, as one that tears the last piece would; but what
        is replaced goes in one piece with what replaces it."""
        handle = self._log_handle
        for group, entries in batch.entries.items():
            first = entries[0].index
            replaces = group in self._begun or first <= self.reader(group).last_index()
            if replaces:
                raw.delete_range(KEY.pack(group, first), KEY.pack(group, _LAST_INDEX), handle)
            for entry in entries:
                raw.put(KEY.pack(group, entry.index), entry_value(group, entry), handle)
                if not replaces and raw.size_in_bytes() > _PIECE_BYTES:
                    yield raw
                    raw = WriteBatch(raw_mode=True)
        if len(raw):
            yield raw

    def _note(self, batch: LogBatch, records: dict[GroupId, GroupRecord]) -> None:
        """The batch is written: the readers learn it."""
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
