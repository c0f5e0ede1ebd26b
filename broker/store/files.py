"""Where the blocks of a stream rest: the seam between the message store and a disk.

Owns: the Protocols `StateBatch` and `BlockFiles`, the key layout, and the keeper that is only
memory (memory streams, tests).
May not touch: what the values mean, when they are written.
Spec: DESIGN section 5. A batch is atomic: after a crash all of it is there or none of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from struct import Struct as Packing
from typing import Final, Protocol, TypeVar

Result = TypeVar("Result")

_KEY: Final = Packing(">QcQ")  # group, kind, sequence: big-endian, so keys sort by sequence

RECORD: Final = b"r"  # one per group, sequence 0: the stream's own state
BLOCK: Final = b"b"  # first sequence -> the block
SUMMARY: Final = b"s"  # first sequence -> rows, times, subjects of the block
DELETES: Final = b"d"  # first sequence -> which of its rows are gone
DEDUP: Final = b"m"  # chunk number -> message ids of the duplicate window
STAGED: Final = b"a"  # number -> the members of an atomic batch that is not committed
POSITION: Final = b"p"  # sequence 0: index and term of the record, where the log may be shorter
KINDS: Final = (RECORD, BLOCK, SUMMARY, DELETES, DEDUP, STAGED, POSITION)


def key(group: int, kind: bytes, seq: int) -> bytes:
    return _KEY.pack(group, kind, seq)


def seq_of(raw_key: bytes) -> int:
    return int.from_bytes(raw_key[9:17], "big")


class StateBatch(Protocol):
    """Changes of one or several groups that become visible together."""

    def put(self, raw_key: bytes, value: bytes, /) -> None: ...
    def delete(self, raw_key: bytes, /) -> None: ...


class BlockReader(Protocol):
    def get(self, kind: bytes, seq: int, /) -> bytes | None: ...


class BlockFiles(BlockReader, Protocol):
    """The keys of one group. Reads see what has been written, not what waits in a batch."""

    @property
    def group(self) -> int: ...
    def scan(self, kind: bytes, /) -> Iterator[tuple[int, bytes]]:
        """(sequence, value) of one kind, ascending."""
        ...

    def frozen(self) -> BlockReader:
        """A view that later batches do not change: snapshots are read from it, slowly."""
        ...


class StateKeeper(Protocol):
    """Where the state of groups is kept: StateDb on disk, MemoryDb as long as we run."""

    def files(self, group: int, /) -> BlockFiles: ...

    def change(self, fill: Callable[[StateBatch], Result], /) -> Result:
        """Write what `fill` puts into a batch; returns what it returns."""
        ...


def wipe(files: BlockFiles, batch: StateBatch) -> None:
    """Queue the removal of everything the group has written."""
    for kind in KINDS:
        for seq, _ in files.scan(kind):
            batch.delete(key(files.group, kind, seq))


@dataclass(slots=True)
class MemoryBatch:
    changes: list[tuple[bytes, bytes | None]] = field(default_factory=list)

    def put(self, raw_key: bytes, value: bytes) -> None:
        self.changes.append((raw_key, value))

    def delete(self, raw_key: bytes) -> None:
        self.changes.append((raw_key, None))


@dataclass(slots=True)
class MemoryDb:
    """The twin of StateDb that forgets when the process ends."""

    values: dict[bytes, bytes] = field(default_factory=dict)

    def begin(self) -> MemoryBatch:
        return MemoryBatch()

    def change(self, fill: Callable[[StateBatch], Result]) -> Result:
        batch = self.begin()
        result = fill(batch)
        self.write(batch)
        return result

    def write(self, batch: MemoryBatch) -> None:
        for raw_key, value in batch.changes:
            if value is None:
                self.values.pop(raw_key, None)
            else:
                self.values[raw_key] = value

    def flush(self) -> None:
        """Nothing to do: memory has no deeper place."""

    def files(self, group: int) -> MemoryFiles:
        return MemoryFiles(group, self.values)


@dataclass(slots=True)
class MemoryFiles:
    group: int
    values: dict[bytes, bytes]

    def get(self, kind: bytes, seq: int) -> bytes | None:
        return self.values.get(key(self.group, kind, seq))

    def scan(self, kind: bytes) -> Iterator[tuple[int, bytes]]:
        prefix = key(self.group, kind, 0)[:9]
        for raw_key in sorted(k for k in self.values if k.startswith(prefix)):
            yield seq_of(raw_key), self.values[raw_key]

    def frozen(self) -> BlockReader:
        prefix = self.group.to_bytes(8, "big")
        ours = {k: v for k, v in self.values.items() if k.startswith(prefix)}
        return MemoryFiles(self.group, ours)
