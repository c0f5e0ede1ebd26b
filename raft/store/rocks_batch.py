"""A LogBatch as RocksDB write batches: which keys are put and deleted, and in which pieces.

Owns: the order of puts and deletes in a write to column family "raft".
May not touch: the database itself (raft/store/log_store.py writes), the bytes of a record
(raft/store/records.py)."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import Final

from rocksdict import ColumnFamily, WriteBatch

from raft.store.group_log import GroupLog
from raft.store.records import KEY, GroupRecord, entry_value, group_value
from raft.store.write_batch import LogBatch
from raft.types import GroupId

LAST_INDEX: Final = 2**64 - 1
_PIECE_BYTES: Final = 32 << 10  # RocksDB copies a write batch each time it outgrows its buffer

Reader = Callable[[GroupId], GroupLog]


def rocks_write_batch() -> WriteBatch:
    return WriteBatch(raw_mode=True)


def encode_records(
    batch: LogBatch, raw: WriteBatch, *, reader: Reader, column: ColumnFamily | None
) -> tuple[WriteBatch, dict[GroupId, GroupRecord]]:
    """Everything except the entries, added to `raw` (consumed by one attempt to write it), and
    the changed group records."""
    records: dict[GroupId, GroupRecord] = {}
    for group in batch.removed:
        raw.delete_range(KEY.pack(group, 0), KEY.pack(group, LAST_INDEX), column)
    for group, meta in batch.snapshots.items():
        raw.delete_range(KEY.pack(group, 1), KEY.pack(group, LAST_INDEX), column)
        records[group] = reader(group).record.with_snapshot(meta)
    for group, meta in batch.cuts.items():
        log = reader(group)
        raw.delete_range(
            KEY.pack(group, log.first_index()), KEY.pack(group, meta.index + 1), column
        )
        records[group] = log.record.with_snapshot(meta)
    for group, meta in batch.installs.items():
        record = records.get(group) or reader(group).record
        records[group] = record.with_installing(meta)
    for group, hard_state in batch.hard_states.items():
        record = records.get(group) or reader(group).record
        records[group] = record.with_hard_state(hard_state)
    for group in batch.entries:
        log = reader(group)
        if group not in records and log.last_index() == 0:
            records[group] = log.record  # a log without its record would be read as damaged
    for group, record in records.items():
        raw.put(KEY.pack(group, 0), group_value(group, record), column)
    return raw, records


def encode_pieces(
    batch: LogBatch,
    raw: WriteBatch,
    *,
    reader: Reader,
    column: ColumnFamily | None,
    begun: Container[GroupId],
    new_batch: Callable[[], WriteBatch],
) -> Iterator[WriteBatch]:
    """The RocksDB batches to write one after the other: `raw`, and the entries. A crash between two
    of them leaves a prefix of the new entries, just as a torn last one would. Entries that replace
    others are in one batch with the deletion of the old ones; so are those of groups in `begun`, of
    which a refused write may have left some."""
    for group, entries in batch.entries.items():
        first = entries[0].index
        replaces = group in begun or first <= reader(group).last_index()
        if replaces:
            raw.delete_range(KEY.pack(group, first), KEY.pack(group, LAST_INDEX), column)
        for entry in entries:
            raw.put(KEY.pack(group, entry.index), entry_value(group, entry), column)
            if not replaces and raw.size_in_bytes() > _PIECE_BYTES:
                yield raw
                raw = new_batch()
    if len(raw):
        yield raw
