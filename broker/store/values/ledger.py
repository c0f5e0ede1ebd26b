"""Which values are alive, which file contains each, and which files are worth emptying.

Owns: the table of places, and how many bytes of every file are alive, dead or held.
May not touch: files, the database, clocks.
Spec: docs/decisions/0038-block-files.md. A key is opaque, except that its first eight
bytes name its owner: all values of an owner can be listed, and dropped together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

OWNER_BYTES: Final = 8
BORDER: Final = 4096  # alignment of values: a torn sector never damages a value synced before
HEAD_BYTES: Final = 40
_EMPTIED_SHARE: Final = 5  # files are emptied when dead bytes exceed 1/5 of the live bytes ...
_CROWDED_SHARE: Final = 10  # on a full disk: every file of which 1/10 is dead


class ValuePlace(NamedTuple):
    file: int
    offset: int
    size: int


def extent(size: int) -> int:
    """The bytes that a value of this size takes in a file."""
    return -(-(HEAD_BYTES + size) // BORDER) * BORDER


@dataclass(slots=True)
class FileUse:
    size: int = 0
    alive: int = 0
    held: int = 0  # number of values that are written but not yet referred to or given up
    growing: bool = False
    stuck: bool = False  # it contains a value that could not be moved
    keys: set[bytes] = field(default_factory=set)

    @property
    def dead(self) -> int:
        return self.size - self.alive


class ValueLedger:
    def __init__(self) -> None:
        self.files: dict[int, FileUse] = {}
        self.alive = self.size = 0
        self._owners: dict[bytes, dict[bytes, ValuePlace]] = {}

    # values

    def place(self, key: bytes) -> ValuePlace | None:
        owned = self._owners.get(key[:OWNER_BYTES])
        return None if owned is None else owned.get(key)

    def of_owner(self, owner: bytes) -> dict[bytes, ValuePlace]:
        """A copy."""
        return dict(self._owners.get(owner, ()))

    def of_file(self, file: int) -> list[tuple[bytes, ValuePlace]]:
        """In the order of the file."""
        places = ((key, self.place(key)) for key in self.files[file].keys)
        found = [(key, place) for key, place in places if place is not None]
        return sorted(found, key=lambda one: one[1].offset)

    def refer(self, key: bytes, place: ValuePlace) -> None:
        """The value of the key is at this place from now on."""
        self.drop(key)
        self._owners.setdefault(key[:OWNER_BYTES], {})[key] = place
        use = self.files.setdefault(place.file, FileUse())
        self._grow(use, place.offset + extent(place.size))
        use.keys.add(key)
        use.alive += extent(place.size)
        self.alive += extent(place.size)

    def drop(self, key: bytes) -> None:
        owned = self._owners.get(key[:OWNER_BYTES])
        place = None if owned is None else owned.pop(key, None)
        if owned is None or place is None:
            return
        if not owned:
            del self._owners[key[:OWNER_BYTES]]
        use = self.files[place.file]
        use.keys.discard(key)
        use.alive -= extent(place.size)
        self.alive -= extent(place.size)

    def drop_owner(self, owner: bytes) -> None:
        for key in list(self._owners.get(owner, ())):
            self.drop(key)

    # files

    def begin(self, file: int) -> None:
        """A new file, to which values are appended until `end`."""
        self.files[file] = FileUse(growing=True)

    def end(self, file: int) -> None:
        self.files[file].growing = False

    def found(self, file: int, size: int) -> None:
        """A file that exists from an earlier run, with this size."""
        self._grow(self.files.setdefault(file, FileUse()), -(-size // BORDER) * BORDER)

    def hold(self, place: ValuePlace) -> None:
        """The value is being written: its file is kept until `release`."""
        use = self.files[place.file]
        self._grow(use, place.offset + extent(place.size))
        use.held += 1

    def release(self, places: Iterable[ValuePlace]) -> None:
        for place in places:
            self.files[place.file].held -= 1

    def forget(self, file: int) -> None:
        """The file was removed."""
        self.size -= self.files.pop(file).size

    def _grow(self, use: FileUse, size: int) -> None:
        grown = max(0, size - use.size)
        use.size += grown
        self.size += grown

    # decisions

    def unused(self) -> list[int]:
        """Files in which nothing is alive and to which nothing will be appended."""
        return [
            number
            for number, use in self.files.items()
            if not use.keys and not use.held and not use.growing
        ]

    def wasteful(self, file_bytes: int, *, crowded: bool) -> int | None:
        """The file to empty next: the one with the fewest live bytes, if that frees enough."""
        movable = {
            number: use
            for number, use in self.files.items()
            if use.keys and not use.held and not use.growing and not use.stuck and use.dead
        }
        if crowded:
            movable = {n: use for n, use in movable.items() if use.dead * _CROWDED_SHARE > use.size}
        elif sum(use.dead for use in movable.values()) <= (
            self.alive // _EMPTIED_SHARE + file_bytes // 2
        ):
            return None
        return min(movable, key=lambda n: (movable[n].alive, n), default=None)

    def with_garbage(self) -> list[int]:
        """Files with both live and dead values."""
        return [n for n, use in self.files.items() if use.keys and use.dead and not use.growing]
