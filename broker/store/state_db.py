"""The column family `state` in RocksDB: applied blocks and stream records.

Owns: reading and writing that column family. Writes skip the write-ahead log, because the Raft
log can replay them; they are durable only after `flush`.
May not touch: the column family `raft`, the meaning of values.
Spec: docs/ARCHITECTURE.md, "Storage".

`flush` blocks until the disk is done: call it on the storage thread. `write` and reads hold the
GIL, so batches must stay small."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from rocksdict import Rdict, Snapshot, WriteBatch, WriteOptions

from broker.store.state_keys import BlockReader, Result, StateBatch, key, seq_of


class RocksBatch:
    """A WriteBatch whose keys go to one column family."""

    __slots__ = ("_column", "raw")

    def __init__(self, raw: WriteBatch, column_handle: Any) -> None:
        self.raw = raw
        self._column = column_handle

    def put(self, raw_key: bytes, value: bytes) -> None:
        self.raw.put(raw_key, value, self._column)

    def delete(self, raw_key: bytes) -> None:
        self.raw.delete(raw_key, self._column)


class StateDb:
    """One per node. Its owner opens `db` in raw mode, with the column family."""

    def __init__(
        self,
        db: Rdict,
        *,
        column: str = "state",
        write: Callable[[WriteBatch, WriteOptions], None] | None = None,
        new_batch: Callable[[], WriteBatch] = partial(WriteBatch, raw_mode=True),  # noqa: B008,
    ) -> None:
        """`write` replaces the write of the database, so that the owner sees failures."""
        self._new_batch = new_batch
        self._name = column
        self._write = write
        self.take(db)
        options: Any = WriteOptions()
        options.disable_wal = True  # the type stub does not know this property
        self._without_wal: WriteOptions = options

    def take(self, db: Rdict) -> None:
        """Use this database: called once at the start, and again after it was reopened."""
        self._db = db
        self._column = db.get_column_family(self._name)
        self._handle: Any = db.get_column_family_handle(self._name)

    def let_go(self) -> None:
        """Release all handles: the database is about to be closed."""
        self._handle = None
        self._column.close()

    def begin(self) -> RocksBatch:
        return RocksBatch(self._new_batch(), self._handle)

    def change(self, fill: Callable[[StateBatch], Result]) -> Result:
        batch = self.begin()
        result = fill(batch)
        self.write(batch)
        return result

    def write(self, batch: RocksBatch) -> None:
        write = self._write or self._db.write
        write(batch.raw, self._without_wal)

    def wipe(self, group: int) -> None:
        """Delete all records of a group, without reading them."""
        batch = self.begin()
        batch.raw.delete_range(key(group, b"\0", 0), key(group + 1, b"\0", 0), self._handle)
        self.write(batch)

    def flush(self) -> None:
        """Everything written before this call is durable when it returns."""
        self._column.flush(wait=True)

    def files(self, group: int) -> RocksFiles:
        return RocksFiles(group, self._column)


@dataclass(slots=True)
class RocksFiles:
    """The records of one group."""

    group: int
    column: Rdict

    def get(self, kind: bytes, seq: int) -> bytes | None:
        value: bytes | None = self.column.get(key(self.group, kind, seq))
        return value

    def scan(self, kind: bytes) -> Iterator[tuple[int, bytes]]:
        prefix = key(self.group, kind, 0)[:9]
        items: Any = self.column.items(from_key=prefix + bytes(8))
        for raw_key, value in items:
            if not raw_key.startswith(prefix):
                return
            yield seq_of(raw_key), value

    def frozen(self) -> BlockReader:
        return FrozenFiles(self.group, self.column.snapshot())


@dataclass(slots=True)
class FrozenFiles:
    """The records of one group at the time of a database snapshot.

    On a snapshot, rocksdict 0.3.29 iterates over the default column family; only subscripts use the
    right one, and they raise for a missing key. So `get` is only for keys that exist."""

    group: int
    view: Snapshot

    def get(self, kind: bytes, seq: int) -> bytes | None:
        value: bytes = self.view[key(self.group, kind, seq)]
        return value
