"""Migrates a directory of format 1, whose log is in the database, to the current format.

Owns: reading column family "raft", and the order of the steps.
May not touch: the state column.
Spec: docs/decisions/0019-a-log-of-our-own.md, "Migration". Until the identity says format 2, the
column is the log, and anything in the new place is removed and written again. From then on the
column is ignored, and dropped. So each step may be interrupted."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

import msgspec
from rocksdict import Rdict

from raft.core.messages import Entry
from raft.store.database import StoreIdentity, drop_old_log, old_log, write_identity
from raft.store.node_log import NodeLog
from raft.store.records import FORMAT, KEY, DamagedLog, GroupRecord, read_entry, read_group
from raft.store.segments.files import LogFiles
from raft.store.write_batch import LogBatch
from raft.types import GroupId, HardState, Index

_log = logging.getLogger("raft.store")
_BATCH_BYTES: Final = 4 << 20


def remove_unfinished(identity: StoreIdentity, *places: LogFiles) -> None:
    """Remove what an interrupted migration left, before the log is opened. Raises OSError."""
    if identity.format < FORMAT:
        for files in places:
            for name in files.names():
                files.remove(name)
            files.sync_names()


def migrate(db: Rdict, identity: StoreIdentity, log: NodeLog) -> StoreIdentity:
    """Blocking. Copy the contents of the old column, then drop it. Raises OSError, StoreError."""
    column = old_log(db)
    try:
        if identity.format < FORMAT:
            if column is not None:
                _copy(column, log)
            identity = msgspec.structs.replace(identity, format=FORMAT)
            write_identity(db, identity)
    finally:  # an open column would keep the database open
        if column is not None:
            column.close()
    if column is not None:
        drop_old_log(db)
    return identity


def _copy(column: Rdict, log: NodeLog) -> None:
    count = 0
    for group in _groups(column):
        count += 1
        try:
            _copy_group(column, group, log)
        except DamagedLog as error:
            _log.error("%s", error)
            removal = LogBatch()
            removal.remove(group)
            log.write_when_ready(removal)
            log.quarantine(error, _hard_state(column, group), error.index)
    log.flush_all()
    _log.info("moved the logs of %d groups out of the database", count)


def _groups(column: Rdict) -> Iterator[GroupId]:
    cursor = column.iter()
    cursor.seek(KEY.pack(0, 0))
    while cursor.valid():
        group, _ = KEY.unpack(cursor.key())
        yield GroupId(group)
        if group == 2**64 - 1:
            break
        cursor.seek(KEY.pack(group + 1, 0))
    cursor.status()


def _hard_state(column: Rdict, group: GroupId) -> HardState | None:
    try:
        value = column.get(KEY.pack(group, 0))
        return None if value is None else read_group(group, value).hard_state
    except DamagedLog:
        return None


def _copy_group(column: Rdict, group: GroupId, log: NodeLog) -> None:
    value = column.get(KEY.pack(group, 0))
    if value is None:
        raise DamagedLog(group, Index(0), "there is no group record")
    record = read_group(group, value)
    batch = _first_batch(group, record)
    last = record.snapshot.index
    for entry in _entries(column, group):
        if entry.index != last + 1:
            raise DamagedLog(group, Index(last + 1), f"the next entry on disk is {entry.index}")
        last = entry.index
        batch.put_entries(group, [entry])
        if batch.nbytes > _BATCH_BYTES:
            log.write_when_ready(batch)
            batch = LogBatch()
    if record.hard_state.commit > last:
        raise DamagedLog(group, Index(last + 1), "missing, although the log is committed beyond it")
    log.write_when_ready(batch)


def _first_batch(group: GroupId, record: GroupRecord) -> LogBatch:
    batch = LogBatch()
    batch.put_hard_state(group, record.hard_state)
    if record.snapshot.index:
        batch.put_snapshot(group, record.snapshot)
    if record.installing.index:
        batch.put_installing(group, record.installing)
    return batch


def _entries(column: Rdict, group: GroupId) -> Iterator[Entry]:
    index = Index(0)
    cursor = column.iter()
    try:
        cursor.seek(KEY.pack(group, 1))
        while cursor.valid():
            found, position = KEY.unpack(cursor.key())
            if found != group:
                return
            index = Index(position)
            yield read_entry(group, index, cursor.value())
            cursor.next()
        cursor.status()  # a bad block makes the cursor invalid; this raises the error
    except DamagedLog:
        raise
    except Exception as error:  # rocksdict raises plain Exception for a bad block
        raise DamagedLog(group, Index(index + 1), str(error)) from error
    finally:  # the cursor keeps the database open, and a traceback would keep the cursor
        del cursor
