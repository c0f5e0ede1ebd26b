"""The column family `state` in RocksDB: applied blocks and stream records.

Owns: reading and writing that column family, and the references in it to blocks in files. Writes
skip the write-ahead log, because the Raft log can replay them; they are durable only after `flush`.
May not touch: the column family `raft`, the meaning of values, files.
Spec: docs/ARCHITECTURE.md, "Storage"; docs/decisions/0038-block-files.md: a batch with references
to blocks is written only when those blocks are on disk. Any batch may instead be written with its
blocks in it.

`flush` blocks until the disk is done: call it on the storage thread. `write` and reads hold the
GIL, so batches must stay small."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from struct import Struct as Packing
from typing import Any, Final, Protocol

from rocksdict import Rdict, Snapshot, WriteBatch, WriteOptions

from broker.store.block.block_format import BlockDamaged
from broker.store.sealed_blocks import SealedBlocks
from broker.store.state_keys import BLOCK, PLACES, BlockReader, Result, StateBatch, key, seq_of
from broker.store.values.ledger import ValuePlace
from broker.store.values.value_files import ValueDamaged, ValueFiles, ValuePin, WrittenValues

logger = logging.getLogger("jetraft.store")

FILE_BYTES_MIN: Final = 64 << 10  # smaller blocks stay in the database
_PLACE: Final = Packing("<QQQ")  # file, offset, size
_KIND: Final = 8  # where a key has its kind


class ValueCipher(Protocol):
    """Encrypts values (encryption/directory_cipher.py)."""

    def seal(self, data: bytes, place: bytes) -> bytes: ...
    def open(self, sealed: bytes, place: bytes) -> bytes | None: ...


class StaleBatch(Exception):
    """The batch is from before the store was reopened."""


class ColumnHandle:
    """The handle that a WriteBatch needs. While anything refers to the handle, the database stays
    open and locked, even after a close. Batches may live long (they wait for their blocks, or stay
    in the traceback of a failed write), so they refer to this object, and `let_go` empties it."""

    __slots__ = ("raw",)

    def __init__(self, raw: Any) -> None:
        self.raw = raw


class RocksBatch:
    """A WriteBatch whose keys go to one column family."""

    __slots__ = ("_cipher", "_column", "_in_files", "blocks", "large", "opening", "raw")

    def __init__(
        self,
        raw: WriteBatch,
        column_handle: ColumnHandle,
        cipher: ValueCipher | None,
        *,
        in_files: bool = False,
        opening: int = 0,
    ) -> None:
        self.raw = raw
        self.opening = opening  # of the database
        self.large: dict[bytes, bytes] = {}  # blocks that may be written to files
        self.blocks: dict[bytes, None] = {}  # keys of blocks that are changed or deleted
        self._column = column_handle
        self._cipher = cipher
        self._in_files = in_files

    def put(self, raw_key: bytes, value: bytes) -> None:
        if self._cipher is not None:
            value = self._cipher.seal(value, raw_key)
        self._changed(raw_key)
        self.raw.put(raw_key, value, self._column.raw)

    def put_sealed(self, raw_key: bytes, value: bytes) -> None:
        if not self._in_files or len(value) < FILE_BYTES_MIN:
            self.put(raw_key, value)
            return
        self._changed(raw_key)
        self.large[raw_key] = value if self._cipher is None else self._cipher.seal(value, raw_key)

    def delete(self, raw_key: bytes) -> None:
        self._changed(raw_key)
        self.raw.delete(raw_key, self._column.raw)

    def _changed(self, raw_key: bytes) -> None:
        if raw_key[_KIND : _KIND + 1] == BLOCK:
            self.large.pop(raw_key, None)
            self.blocks[raw_key] = None

    def resolve(
        self, places: dict[bytes, ValuePlace], known: Callable[[bytes], bool]
    ) -> list[tuple[bytes, ValuePlace | None]]:
        """Complete the batch: large blocks are at `places`, or go into the database. Returns the
        references that change; `known` returns whether a key had one before."""
        changes: list[tuple[bytes, ValuePlace | None]] = []
        for raw_key in self.blocks:
            place = places.get(raw_key)
            if place is not None:
                self.raw.delete(raw_key, self._column.raw)
                self.raw.put(PLACES + raw_key, _PLACE.pack(*place), self._column.raw)
            elif raw_key in self.large:
                self.raw.put(raw_key, self.large[raw_key], self._column.raw)
            if place is None and known(raw_key):
                self.raw.delete(PLACES + raw_key, self._column.raw)
            elif place is None:
                continue
            changes.append((raw_key, place))
        return changes


class StateDb:
    """One per node. Its owner opens `db` in raw mode, with the column family."""

    def __init__(
        self,
        db: Rdict,
        *,
        column: str = "state",
        write: Callable[[WriteBatch, WriteOptions], None] | None = None,
        new_batch: Callable[[], WriteBatch] = partial(WriteBatch, raw_mode=True),  # noqa: B008,
        cipher: ValueCipher | None = None,
        values: ValueFiles | None = None,
        writer: SealedBlocks | None = None,
    ) -> None:
        """`write` replaces the write of the database, so that the owner sees failures. With a
        `cipher`, all values are encrypted; keys and references are numbers. Without `values`,
        there are no files of blocks."""
        self.in_files: Callable[[], bool] = lambda: False  # whether blocks may be put into files
        self.values = values
        self.writer = writer
        self._cipher = cipher
        self._new_batch = new_batch
        self._name = column
        self._write = write
        self._opening = 0  # counts the calls of `take`
        # Groups whose references were read one by one, because not all could be read at once.
        self._read_apart: set[int] | None = None
        self.take(db)
        options: Any = WriteOptions()
        options.disable_wal = True  # the type stub does not know this property
        self._without_wal: WriteOptions = options

    def take(self, db: Rdict) -> None:
        """Use this database: called once at the start, and again after it was reopened. Blocking
        while references are read."""
        self._db = db
        self._column = db.get_column_family(self._name)
        self._handle = ColumnHandle(db.get_column_family_handle(self._name))
        self._opening += 1
        self._read_apart = None
        if self.values is not None:
            found, complete = self._references(PLACES)
            if not complete:
                self._read_apart = set()
            self.values.load(found, complete=complete)

    def _references(self, prefix: bytes) -> tuple[list[tuple[bytes, ValuePlace]], bool]:
        """The references with this key prefix, and whether all of them could be read."""
        found: list[tuple[bytes, ValuePlace]] = []
        try:
            for raw_key, value in _records(self._column, prefix):
                found.append((raw_key[len(PLACES) :], ValuePlace(*_PLACE.unpack(value))))
        except Exception as damage:  # noqa: BLE001 - rocksdict raises plain Exception
            logger.warning("references to blocks cannot be read: %s", damage)
            return found, False
        return found, True

    def let_go(self) -> None:
        """Release all handles: the database is about to be closed."""
        self._handle.raw = None
        self._column.close()

    def begin(self) -> RocksBatch:
        return RocksBatch(
            self._new_batch(),
            self._handle,
            self._cipher,
            in_files=self.values is not None and self.in_files(),
            opening=self._opening,
        )

    def change(self, fill: Callable[[StateBatch], Result]) -> Result:
        batch = self.begin()
        result = fill(batch)
        self.write(batch)
        return result

    def write(self, batch: RocksBatch, written: WrittenValues | None = None) -> None:
        """`written`: where the large blocks of the batch are, in their order; they are on disk.
        Without it they are stored in the database. Raises StaleBatch, or what `write` raises."""
        if batch.opening != self._opening:
            raise StaleBatch
        values = self.values
        changes: list[tuple[bytes, ValuePlace | None]] = []
        if values is not None and batch.blocks:
            places: dict[bytes, ValuePlace] = {}
            if written is not None and written.opening == values.opening:
                places = dict(zip(batch.large, written.places, strict=True))
            changes = batch.resolve(places, self._may_refer)
        self._write_raw(batch.raw)
        if values is not None:  # only after the write: a flush that begins now must include it
            values.changed(changes)
            if written is not None:
                values.settle(written)

    def _may_refer(self, raw_key: bytes) -> bool:
        assert self.values is not None
        return self._read_apart is not None or self.values.place(raw_key) is not None

    def _write_raw(self, raw: WriteBatch) -> None:
        (self._write or self._db.write)(raw, self._without_wal)

    def moved(self, copied: Sequence[tuple[bytes, ValuePlace]], written: WrittenValues) -> None:
        """Blocks were copied to other places: update the references, unless a block has changed."""
        values = self.values
        if values is None or written.opening != values.opening:
            return
        raw, changes = self._new_batch(), []
        for (raw_key, old), new in zip(copied, written.places, strict=True):
            if values.place(raw_key) == old:
                raw.put(PLACES + raw_key, _PLACE.pack(*new), self._handle.raw)
                changes.append((raw_key, new))
        if changes:
            self._write_raw(raw)
            values.changed(changes)
        values.settle(written)

    def wipe(self, group: int) -> None:
        """Delete all records of a group, without reading them."""
        raw = self._new_batch()
        first, last = key(group, b"\0", 0), key(group + 1, b"\0", 0)
        raw.delete_range(first, last, self._handle.raw)
        if self.values is not None:
            raw.delete_range(PLACES + first, PLACES + last, self._handle.raw)
        self._write_raw(raw)
        if self.values is not None:
            self.values.dropped(first[:_KIND])

    def flush(self) -> None:
        """Everything written before this call is durable when it returns."""
        doomed = [] if self.values is None else self.values.doomed()
        self._column.flush(wait=True)
        if self.values is not None:
            self.values.remove(doomed)

    def files(self, group: int) -> RocksFiles:
        if self._read_apart is not None and group not in self._read_apart:
            # A block whose reference is not found counts as damaged.
            self._read_apart.add(group)
            assert self.values is not None
            self.values.changed(self._references(PLACES + key(group, BLOCK, 0)[:_KIND])[0])
        return RocksFiles(group, self._column, self._cipher, self.values)


@dataclass(slots=True)
class RocksFiles:
    """The records of one group."""

    group: int
    column: Rdict
    cipher: ValueCipher | None = None
    values: ValueFiles | None = None

    def get(self, kind: bytes, seq: int) -> bytes | None:
        raw_key = key(self.group, kind, seq)
        if kind == BLOCK and self.values is not None:
            place = self.values.place(raw_key)
            if place is not None:
                return self._in_file(self.values, raw_key, place)
        value: bytes | None = self.column.get(raw_key)
        return value if value is None else _opened(self.cipher, raw_key, value)

    def size_in_file(self, seq: int) -> int | None:
        if self.values is None or self.cipher is not None:
            return None
        place = self.values.place(key(self.group, BLOCK, seq))
        return None if place is None else place.size

    def read_into(self, seq: int, memory: memoryview, *, checksum_from: int) -> int:
        values, raw_key = self.values, key(self.group, BLOCK, seq)
        place = None if values is None else values.place(raw_key)
        if values is None or place is None or place.size != len(memory):
            raise BlockDamaged("the block is not in a file any more")

        def read(place: ValuePlace) -> int:
            return values.read_into(raw_key, place, memory, checksum_from=checksum_from)

        return self._while_moved(values, raw_key, place, read)

    def _in_file(self, values: ValueFiles, raw_key: bytes, place: ValuePlace) -> bytes:
        return self._while_moved(
            values,
            raw_key,
            place,
            lambda where: _opened(self.cipher, raw_key, values.read(raw_key, where)),
        )

    def _while_moved(
        self,
        values: ValueFiles,
        raw_key: bytes,
        place: ValuePlace,
        read: Callable[[ValuePlace], Result],
    ) -> Result:
        """Read on any thread. Retried, because the block may be moved meanwhile and its old file
        removed."""
        while True:
            try:
                return read(place)
            except ValueDamaged as damage:
                now = values.place(raw_key)
                if now is None or now == place:
                    raise BlockDamaged(str(damage)) from damage
                place = now

    def scan(self, kind: bytes) -> Iterator[tuple[int, bytes]]:
        """Raises if it finds damage."""
        for raw_key, value in _records(self.column, key(self.group, kind, 0)[:9]):
            yield seq_of(raw_key), _opened(self.cipher, raw_key, value)

    def frozen(self) -> BlockReader:
        frozen = FrozenFiles(self.group, self.column.snapshot(), self.cipher)
        if self.values is not None:
            frozen.values, frozen.pin = self.values, self.values.pin()
            frozen.places = self.values.of_owner(key(self.group, BLOCK, 0)[:_KIND])
        return frozen


@dataclass(slots=True)
class FrozenFiles:
    """The records of one group at the time of a database snapshot.

    On a snapshot, rocksdict 0.3.29 iterates over the default column family; only subscripts use the
    right one, and they raise for a missing key. So `get` is only for keys that exist."""

    group: int
    view: Snapshot
    cipher: ValueCipher | None = None
    values: ValueFiles | None = None
    pin: ValuePin | None = None  # as long as it lives, the files of `places` do
    places: dict[bytes, ValuePlace] = field(default_factory=dict)

    def get(self, kind: bytes, seq: int) -> bytes | None:
        raw_key = key(self.group, kind, seq)
        place = self.places.get(raw_key)
        if place is None or self.values is None:
            return _opened(self.cipher, raw_key, self.view[raw_key])
        try:
            return _opened(self.cipher, raw_key, self.values.read(raw_key, place))
        except ValueDamaged as damage:
            raise BlockDamaged(str(damage)) from damage


def _records(column: Rdict, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Records with this key prefix, in order. Raises if it finds damage, where `items` of rocksdict
    would end silently (checked by tests/store/test_damaged_scan.py)."""
    cursor: Any = column.iter()
    try:
        cursor.seek(prefix)
        while cursor.valid():
            raw_key = cursor.key()
            if not raw_key.startswith(prefix):
                return
            yield raw_key, cursor.value()
            cursor.next()
        cursor.status()
    finally:  # the iterator keeps the database open, and a traceback would keep the iterator
        del cursor


def _opened(cipher: ValueCipher | None, raw_key: bytes, value: bytes) -> bytes:
    """Decrypt a value. Raises BlockDamaged, as for a wrong checksum."""
    if cipher is None:
        return value
    data = cipher.open(value, raw_key)
    if data is None:
        raise BlockDamaged("a value cannot be decrypted")
    return data
