"""A simulated RocksDB: the database of one node, and what a crash leaves of it.

Owns: two images of every column, the live one and the durable one, and the writes between them.
May not touch: what keys and values mean.
Spec: rocksdict as far as raft/store and broker/store use it. A write with the write-ahead log is
durable after `flush_wal`; one without it after a flush of its column. A crash keeps a prefix of
the writes that were not durable, separately for each of the two kinds: RocksDB may have persisted
more than was requested, but never a later write without an earlier one."""

from __future__ import annotations

import errno
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO
from random import Random
from typing import Any, Final

from raft.store.disk_space import DiskFacts, Space

Change = tuple[str, bytes, bytes | None, bytes | None]  # column, key, value, end of a range


REWRITTEN: Final = {"rocksdb.live-blob-file-size": 1 << 32, "rocksdb.num-blob-files": 1}


class SimWriteBatch:
    """The changes of one write, in order."""

    __slots__ = ("_nbytes", "changes")

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self._nbytes = 0

    def put(self, key: bytes, value: bytes, column: Any = None) -> None:
        self.changes.append((column or "default", key, value, None))
        self._nbytes += len(key) + len(value)

    def delete(self, key: bytes, column: Any = None) -> None:
        self.changes.append((column or "default", key, None, None))
        self._nbytes += len(key)

    def delete_range(self, begin: bytes, end: bytes, column: Any = None) -> None:
        self.changes.append((column or "default", begin, None, end))
        self._nbytes += len(begin) + len(end)

    def size_in_bytes(self) -> int:
        return self._nbytes

    def __len__(self) -> int:
        return len(self.changes)


class ColumnImage:
    """Keys and values, in the order of the keys."""

    __slots__ = ("_keys", "damaged", "values")

    def __init__(
        self, values: dict[bytes, bytes] | None = None, damaged: set[bytes] | None = None
    ) -> None:
        self.values = {} if values is None else values
        self.damaged = set() if damaged is None else damaged  # keys that cannot be read
        self._keys: list[bytes] | None = None

    def keys(self) -> list[bytes]:
        if self._keys is None:
            self._keys = sorted(self.values)
        return self._keys

    def read(self, key: bytes) -> bytes | None:
        if key in self.damaged:
            raise DamagedValue("Corruption: block checksum mismatch (simulated)")
        return self.values.get(key)

    def change(self, key: bytes, value: bytes | None, end: bytes | None) -> None:
        values = self.values
        if self.damaged:
            last = key + b"\0" if end is None else end
            self.damaged = {one for one in self.damaged if not key <= one < last}
        if value is not None:
            if key not in values:
                self._insert(key)
            values[key] = value
        elif end is None:
            if values.pop(key, None) is not None:
                self._keys = None
        else:
            keys = self.keys()
            doomed = keys[bisect_left(keys, key) : bisect_left(keys, end)]
            for one in doomed:
                del values[one]
            if doomed:
                self._keys = None

    def _insert(self, key: bytes) -> None:
        keys = self._keys
        if keys is None:
            return
        if not keys or key > keys[-1]:
            keys.append(key)
        else:
            keys.insert(bisect_left(keys, key), key)

    def copy(self) -> ColumnImage:
        return ColumnImage(dict(self.values), set(self.damaged))


COLUMNS = ("default", "raft", "state")


def _images() -> dict[str, ColumnImage]:
    return {name: ColumnImage() for name in COLUMNS}


@dataclass(slots=True)
class DatabaseFiles:
    """What is on the disk of one node: it survives crashes."""

    durable: dict[str, ColumnImage] = field(default_factory=_images)
    live: dict[str, ColumnImage] = field(default_factory=_images)
    logged: list[list[Change]] = field(default_factory=list)  # with write-ahead log, not flushed
    unlogged: list[list[Change]] = field(default_factory=list)  # without it, not flushed
    written: int = 0  # logged writes ever made; the last len(logged) of them are not durable
    openings: int = 0
    space: Space = Space.AMPLE
    crowded: bool = False  # messages fit, but no temporary file and no copy of the database
    write_fails: bool = False
    flush_fails: bool = False
    condemned: str = ""  # why it cannot be opened
    corrupt: bool = False  # RocksDB finds a damaged file at the next write

    def write(self, changes: list[Change], *, logged: bool) -> None:
        if self.write_fails:
            raise DiskFault("IO error: simulated write error")
        if self.corrupt:
            raise CorruptFile("Corruption: a file of a compaction (simulated)")
        _apply(self.live, changes)
        if logged:
            self.logged.append(changes)
            self.written += 1
        else:
            self.unlogged.append(changes)

    def flush_logged(self, position: int) -> None:
        """The first `position` logged writes ever made are durable."""
        count = position - (self.written - len(self.logged))
        for changes in self.logged[: max(0, count)]:
            _apply(self.durable, changes)
        del self.logged[: max(0, count)]

    def flush_unlogged(self, count: int) -> None:
        for changes in self.unlogged[:count]:
            _apply(self.durable, changes)
        del self.unlogged[:count]

    def damage(self, rng: Random) -> str:
        """Damage the stored state: a value that RocksDB cannot read, a block that it accepts but
        whose content is wrong, or two places with neither the old nor the new value, because a
        write went to the wrong place. (RocksDB has one checksum for a key and its value, so a value
        is never found under another key.) Returns what is damaged; empty if no messages are stored
        yet."""
        images = [self.durable["state"], self.live["state"]]
        both = sorted(images[0].values.keys() & images[1].values.keys())
        stored = sorted({key[:8] for key in both if key[8:9] == b"b"})  # groups of streams
        if not stored:
            return ""
        group = rng.choice(stored if rng.random() < 0.8 else both)[:8]
        keys = [key for key in both if key.startswith(group)]
        blocks = [key for key in keys if key[8:9] == b"b"]
        how = rng.choice(("unreadable", "changed", "misdirected"))
        chosen = rng.choice(keys if how == "unreadable" else blocks or keys)
        other = rng.choice(keys)
        raw = bytearray(images[0].values[chosen])
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        for image in images:
            if how == "changed" and blocks:
                image.values[chosen] = bytes(raw)
            else:
                image.damaged |= {chosen, other} if how == "misdirected" else {chosen}
        return f"{how}, {chosen.hex()}"

    def damage_group(self, group: int) -> None:
        """Make all records of the group unreadable."""
        for image in (self.durable["state"], self.live["state"]):
            image.damaged |= {one for one in image.values if one[:8] == group.to_bytes(8, "big")}

    def holds(self, text: bytes) -> bool:
        """Whether any value contains the text."""
        images = (*self.live.values(), *self.durable.values())
        return any(text in value for image in images for value in image.values.values())

    def has_value(self, beginning: bytes) -> bool:
        return any(value.startswith(beginning) for value in self.live["state"].values.values())

    def crash(self, rng: Random) -> int:
        """Returns how many writes are lost."""
        kept = rng.randint(0, len(self.logged)) if rng.random() < 0.5 else 0
        self.flush_logged(self.written - len(self.logged) + kept)
        if rng.random() < 0.3:
            self.flush_unlogged(rng.randint(0, len(self.unlogged)))
        lost = len(self.logged) + len(self.unlogged)
        self.logged.clear()
        self.unlogged.clear()
        self.live = {name: image.copy() for name, image in self.durable.items()}
        return lost


def _apply(images: dict[str, ColumnImage], changes: list[Change]) -> None:
    for column, key, value, end in changes:
        images[column].change(key, value, end)


class DiskFault(OSError):
    """An injected fault of the simulated disk."""


def is_injected(error: BaseException) -> bool:
    """Whether a fault of the simulated disk caused it."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, DiskFault | CorruptFile):
        if isinstance(cause, OSError) and cause.errno == errno.ENOSPC:
            return True  # of the files of the log (chaos/sim/files.py)
        cause = cause.__cause__
    return cause is not None


class DamagedValue(Exception):
    """Like rocksdict's: a plain exception whose text describes the problem."""


class CorruptFile(DamagedValue):
    """Found in the background: the database refuses every write from now on."""


class ProcessEnded(Exception):
    """Code of a killed process still ran."""


class SimDatabase:
    """One opening of the database: stands in for an Rdict."""

    def __init__(
        self, files: DatabaseFiles, alive: Callable[[], bool], column: str = "default"
    ) -> None:
        """`alive`: whether the process that opened it still runs. A dead one changes nothing."""
        self._files = files
        self._alive = alive
        self._column = column

    @property
    def _image(self) -> ColumnImage:
        return self._files.live[self._column]

    def path(self) -> str:
        return "/simulated"

    def get_column_family(self, name: str) -> SimDatabase:
        return SimDatabase(self._files, self._alive, name)

    def get_column_family_handle(self, name: str) -> str:
        return name

    def get(self, key: bytes) -> bytes | None:
        return self._image.read(key)

    def _check_alive(self) -> None:
        if not self._alive():
            raise ProcessEnded

    def _check_disk(self) -> None:
        if self._files.flush_fails:
            raise DiskFault("IO error: simulated flush error")

    def put(self, key: bytes, value: bytes) -> None:
        self._check_alive()
        self._files.write([(self._column, key, value, None)], logged=True)

    def write(self, batch: SimWriteBatch, options: Any) -> None:
        self._check_alive()
        self._files.write(batch.changes, logged=not getattr(options, "disable_wal", False))

    def flush_wal(self, *, sync: bool) -> None:
        self._check_alive()
        files = self._files
        self._check_disk()
        files.flush_logged(files.written)

    def flush(self, *, wait: bool) -> None:
        self._check_alive()
        files = self._files
        self._check_disk()
        files.flush_logged(files.written)  # a memtable of this column holds logged writes too
        files.flush_unlogged(len(files.unlogged))

    def iter(self) -> SimCursor:
        return SimCursor(self._image)

    def snapshot(self) -> SimSnapshot:
        return SimSnapshot(self._image.copy())

    def property_int_value(self, name: str) -> int:
        """Sizes matter on a crowded disk: a rewrite of files needs the same space again."""
        return REWRITTEN.get(name, 0) if self._files.crowded else 0

    def latest_sequence_number(self) -> int:
        return 0

    def set_options(self, options: dict[str, str]) -> None:
        """Nothing depends on them."""

    def compact_range(self, *_: Any) -> None:
        """The images hold nothing that was deleted."""

    def cancel_all_background(self, *, wait: bool) -> None:
        """There is none."""

    def close(self) -> None:
        """The files stay."""


class SimSnapshot:
    """Stands in for a rocksdict Snapshot."""

    def __init__(self, image: ColumnImage) -> None:
        self._image = image

    def __getitem__(self, key: bytes) -> bytes:
        value = self._image.read(key)
        if value is None:
            raise KeyError(key)
        return value


class SimDiskSpace:
    """Stands in for raft.store.disk_space.DiskSpace."""

    def __init__(self, files: DatabaseFiles) -> None:
        self._files = files
        self.stride, self.margin = 1 << 16, 0

    def facts(self) -> DiskFacts:
        level = self._files.space
        reserve = 1 << 20
        free = {Space.AMPLE: 1 << 30, Space.SHORT: 3 << 18, Space.SCARCE: 1 << 18, Space.NONE: 0}
        return DiskFacts(1 << 31, free[level], reserve)

    def level(self, _coming: int) -> Space:
        return self._files.space

    def probe(self) -> None:
        if self._files.space < Space.SHORT or self._files.write_fails or self._files.flush_fails:
            raise DiskFault("simulated: the disk does not work yet")


class SimCursor:
    """As in RocksDB, damage makes it invalid, and only `status` raises the reason."""

    def __init__(self, image: ColumnImage) -> None:
        self._image = image
        self._keys = list(image.keys())
        self._at = 0
        self._value: bytes | None = None
        self._damage: DamagedValue | None = None

    def seek(self, key: bytes) -> None:
        self._at = bisect_left(self._keys, key)
        self._read()

    def next(self) -> None:
        self._at += 1
        self._read()

    def _read(self) -> None:
        self._value = None
        try:
            while self._at < len(self._keys) and self._value is None:
                self._value = self._image.read(self._keys[self._at])
                self._at += self._value is None  # it was deleted
        except DamagedValue as damage:
            self._damage = damage

    def valid(self) -> bool:
        return self._value is not None

    def key(self) -> bytes:
        return self._keys[self._at]

    def value(self) -> bytes:
        assert self._value is not None
        return self._value

    def status(self) -> None:
        if self._damage is not None:
            raise self._damage


class SpoolFile(BytesIO):
    """Stands in for a temporary file: ends with its process, on the same disk as the database."""

    def __init__(self, files: DatabaseFiles) -> None:
        super().__init__()
        self._files = files

    def write(self, data: Any, /) -> int:
        if self._files.crowded or self._files.write_fails:
            raise DiskFault("simulated: no temporary file can be written")
        return super().write(data)
