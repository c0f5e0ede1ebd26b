"""Files of large values: appending, reading, moving and removing them in a crash-safe order.

Owns: the directory of these files and the ledger of their contents.
May not touch: the database. Its owner writes the references and then calls `changed`; it calls
`doomed` before each flush and `remove` after it.
Spec: docs/decisions/0038-block-files.md. A value is referred to only after it was synced. A file is
removed only after a flush of the database that began when nothing referred to it any more. A file
is never written to again after it was closed, and its number is not used again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from struct import Struct as Packing
from typing import Final, Protocol
from weakref import WeakSet

from isal.isal_zlib import crc32

from broker.store.values.ledger import HEAD_BYTES, ValueLedger, ValuePlace, extent

_log = logging.getLogger("jetraft.store")

_SUFFIX: Final = ".values"
_MAGIC: Final = b"JRV1"
_PART_BYTES: Final = 256 << 10
_HEAD: Final = Packing("<4sII24s4x")  # magic, checksum of the rest, size, key
assert _HEAD.size == HEAD_BYTES


class ValueFile(Protocol):
    """One open file (raft/store/segments/files.py). Every call may raise OSError."""

    @property
    def size(self) -> int: ...
    def write(self, parts: Sequence[bytes | memoryview], offset: int) -> None: ...
    def read(self, size: int, offset: int) -> bytes: ...
    def read_into(self, memory: memoryview, offset: int) -> int: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...


class ValueDirectory(Protocol):
    def names(self) -> list[str]: ...
    def open(self, name: str) -> ValueFile: ...
    def create(self, name: str) -> ValueFile: ...
    def remove(self, name: str) -> None: ...
    def sync_names(self) -> None: ...


class ValueDamaged(Exception):
    """The file does not contain the expected value."""


@dataclass(slots=True)
class _Growing:
    """A file that takes values."""

    number: int
    file: ValueFile
    end: int = 0


@dataclass(slots=True, eq=False, weakref_slot=True)
class ValuePin:
    """While this object is alive, files that contain a live value now are not removed."""

    number: int


@dataclass(frozen=True, slots=True)
class WrittenValues:
    """Values on disk that nothing refers to yet."""

    places: list[ValuePlace]
    opening: int  # of the files


class ValueFiles:
    """`write` and `copy` block, and may run on any thread; so may `read`, `doomed` and `remove`."""

    def __init__(self, files: ValueDirectory, *, file_bytes: int) -> None:
        self.ledger = ValueLedger()
        self.opening = 0  # counts the calls of `load`
        self.file_bytes = file_bytes
        self._files = files
        self._lock = threading.RLock()  # of the ledger
        self._one_writer = threading.Lock()
        self._growing: dict[bool, _Growing] = {}  # by whether it takes moved values
        self._next = 1
        self._keep_all = True  # not all references are known, so no file may be removed
        self._pins: WeakSet[ValuePin] = WeakSet()
        self._pins_made = 0
        self._died: dict[int, int] = {}  # file without live values -> number of pins made before

    # opening

    def load(self, references: Iterable[tuple[bytes, ValuePlace]], *, complete: bool) -> None:
        """Blocking. The database was opened, with these references. Files that nothing refers to
        are removed if these are all references (`complete`). Raises OSError."""
        self.close()
        with self._lock:
            self.opening += 1
            self._died.clear()
            self.ledger = ValueLedger()
            for key, place in references:
                self.ledger.refer(key, place)
            known = set(self.ledger.files)
            found = {number for number in map(_number, self._files.names()) if number is not None}
            self._next = max(found | known | {self._next - 1}) + 1
            self._keep_all = not complete
            for number in found:
                self.ledger.found(number, self._size(number))
            pinned = bool(self._pins)
        if not pinned:  # otherwise after the next flush without a pin
            self.remove(self.doomed())

    def _size(self, number: int) -> int:
        file = self._files.open(_name(number))
        try:
            return file.size
        finally:
            file.close()

    def close(self) -> None:
        with self._one_writer:
            for moved in list(self._growing):
                self._end(moved=moved)

    # writing

    def write(self, values: Sequence[tuple[bytes, bytes]], *, moved: bool = False) -> WrittenValues:
        """Blocking. The values are on disk when this returns; call `settle` later. Raises OSError;
        none of the values is used then."""
        places: list[ValuePlace] = []
        with self._one_writer:
            opening = self.opening
            try:
                self._append(values, places, moved=moved)
            except BaseException:
                self._end(moved=moved)  # its contents after the last sync are unknown
                with self._lock:
                    self.ledger.release(places)
                raise
        return WrittenValues(places, opening)

    def _append(
        self, values: Sequence[tuple[bytes, bytes]], places: list[ValuePlace], *, moved: bool
    ) -> None:
        created = False
        for key, value in values:
            growing = self._growing.get(moved)
            if growing is None:
                growing = self._begin(moved=moved)
                created = True
            place = ValuePlace(growing.number, growing.end, len(value))
            with self._lock:
                self.ledger.hold(place)
            places.append(place)
            growing.file.write([_head(key, len(value)), value], place.offset)
            growing.end += extent(len(value))
            if growing.end >= self.file_bytes:
                self._sync(growing)
                self._end(moved=moved)
        last = self._growing.get(moved)
        if last is not None:
            self._sync(last)
        if created:
            self._files.sync_names()

    def _begin(self, *, moved: bool) -> _Growing:
        number, self._next = self._next, self._next + 1
        growing = _Growing(number, self._files.create(_name(number)))
        with self._lock:
            self.ledger.begin(number)
        self._growing[moved] = growing
        return growing

    def _sync(self, growing: _Growing) -> None:
        growing.file.sync()

    def _end(self, *, moved: bool) -> None:
        growing = self._growing.pop(moved, None)
        if growing is not None:
            with self._lock:
                self.ledger.end(growing.number)
            growing.file.close()

    def settle(self, written: WrittenValues) -> None:
        """The values are referred to by now, or never will be."""
        with self._lock:
            if written.opening == self.opening:
                self.ledger.release(written.places)

    # references

    def place(self, key: bytes) -> ValuePlace | None:
        return self.ledger.place(key)

    def of_owner(self, owner: bytes) -> dict[bytes, ValuePlace]:
        with self._lock:
            return self.ledger.of_owner(owner)

    def changed(self, places: Iterable[tuple[bytes, ValuePlace | None]]) -> None:
        """The database was written: the keys have these places, or none."""
        with self._lock:
            for key, place in places:
                if place is None:
                    self.ledger.drop(key)
                else:
                    self.ledger.refer(key, place)

    def dropped(self, owner: bytes) -> None:
        with self._lock:
            self.ledger.drop_owner(owner)

    # reading

    def read(self, key: bytes, place: ValuePlace) -> bytes:
        """Raises ValueDamaged."""
        try:
            file = self._files.open(_name(place.file))
            try:
                head = file.read(HEAD_BYTES, place.offset)
                value = file.read(place.size, place.offset + HEAD_BYTES)
            finally:
                file.close()
        except OSError as error:
            raise ValueDamaged(f"{_name(place.file)} cannot be read: {error}") from error
        if head != _head(key, place.size) or len(value) != place.size:
            raise ValueDamaged(f"{_name(place.file)} has something else at {place.offset}")
        return value

    def read_into(
        self, key: bytes, place: ValuePlace, memory: memoryview, *, checksum_from: int
    ) -> int:
        """Like `read`, into memory of the value's size. Returns the CRC-32 of its bytes from
        `checksum_from` on, computed part by part while each is in the CPU cache. Raises
        ValueDamaged."""
        checksum = 0
        try:
            file = self._files.open(_name(place.file))
            try:
                found = file.read(HEAD_BYTES, place.offset) == _head(key, place.size)
                for at in range(0, place.size if found else 0, _PART_BYTES):
                    part = memory[at : at + _PART_BYTES]
                    if file.read_into(part, place.offset + HEAD_BYTES + at) != len(part):
                        found = False
                        break
                    checksum = crc32(part[max(checksum_from - at, 0) :], checksum)
            finally:
                file.close()
        except OSError as error:
            raise ValueDamaged(f"{_name(place.file)} cannot be read: {error}") from error
        if not found:
            raise ValueDamaged(f"{_name(place.file)} has something else at {place.offset}")
        return checksum

    def pin(self) -> ValuePin:
        with self._lock:
            self._pins_made += 1
            pin = ValuePin(self._pins_made)
            self._pins.add(pin)
            return pin

    # space

    @property
    def living_bytes(self) -> int:
        return self.ledger.alive

    def doomed(self) -> list[int]:
        """Files that may be removed once the database, as it is now, is on disk."""
        with self._lock:
            if self._keep_all:
                return []
            unused = self.ledger.unused()
            for number in unused:
                self._died.setdefault(number, self._pins_made)
            return unused

    def remove(self, doomed: Iterable[int]) -> None:
        """The database was flushed after `doomed`: remove these files. A file that a pin may need
        is kept until later."""
        with self._lock:
            oldest = min((pin.number for pin in self._pins), default=1 << 62)
            gone = [n for n in doomed if n in self._died and self._died[n] < oldest]
            for number in gone:
                del self._died[number]
                self.ledger.forget(number)
        for number in gone:
            try:
                self._files.remove(_name(number))
            except OSError as error:  # the next start removes it
                _log.warning("%s cannot be removed: %s", _name(number), error)

    def wasteful(self, *, crowded: bool) -> int | None:
        """The file to empty next, if one is worth it."""
        with self._lock:
            if self._keep_all:
                return None
            return self.ledger.wasteful(self.file_bytes, crowded=crowded)

    def with_garbage(self) -> list[int]:
        """All files with dead values, after closing those that were still growing."""
        self.close()
        with self._lock:
            return [] if self._keep_all else self.ledger.with_garbage()

    def living_in(self, file: int) -> list[tuple[bytes, ValuePlace]]:
        with self._lock:
            return self.ledger.of_file(file) if file in self.ledger.files else []

    def copy(
        self, values: Sequence[tuple[bytes, ValuePlace]]
    ) -> tuple[list[tuple[bytes, ValuePlace]], WrittenValues]:
        """Blocking. Copy the values to a file for moved values. What cannot be read stays where it
        is. Returns the values that were copied, and their new places. Raises OSError."""
        copied: list[tuple[bytes, ValuePlace]] = []
        contents: list[tuple[bytes, bytes]] = []
        for key, place in values:
            try:
                contents.append((key, self.read(key, place)))
                copied.append((key, place))
            except ValueDamaged as damage:
                _log.warning("a stored block cannot be moved: %s", damage)
                with self._lock:
                    if place.file in self.ledger.files:
                        self.ledger.files[place.file].stuck = True
        return copied, self.write(contents, moved=True)


def _head(key: bytes, size: int) -> bytes:
    rest = _HEAD.pack(b"", 0, size, key)[8:]
    return _HEAD.pack(_MAGIC, crc32(rest), size, key)


def _name(number: int) -> str:
    return f"{number:010d}{_SUFFIX}"


def _number(name: str) -> int | None:
    digits = name.removesuffix(_SUFFIX)
    return int(digits) if name.endswith(_SUFFIX) and digits.isdecimal() else None
