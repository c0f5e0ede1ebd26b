"""The state column: its key layout, and the interface of a database that holds it.

Owns: the kinds of records, the bytes of a key, and the Protocols between the message store and a
database.
May not touch: what the values mean, when they are written.
Spec: docs/ARCHITECTURE.md, "Storage". A batch is atomic: after a crash, all or none of its changes
are present."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct as Packing
from typing import Final, Protocol, TypeVar

Result = TypeVar("Result")

_KEY: Final = Packing(">QcQ")  # group, kind, sequence: big-endian, so keys sort by sequence

RECORD: Final = b"r"  # sequence 0 -> the stream's record: everything but its messages
BLOCK: Final = b"b"  # first sequence -> the block
SUMMARY: Final = b"s"  # first sequence -> rows, times, subjects of the block
DELETES: Final = b"d"  # first sequence -> which rows of the block are removed
DEDUP: Final = b"m"  # chunk number -> message ids of the duplicate window
STAGED: Final = b"a"  # batch number -> the members of an open atomic batch
POSITION: Final = b"p"  # sequence 0 -> index and term of the record; the log may end before it
ASSIGNED: Final = b"t"  # of the meta group: group of a stream -> its assignment
# References: key of a block -> its place in a block file. They sort after the records of all
# groups, so that one scan reads all of them.
PLACES: Final = b"\xff" * 8 + b"v"
KINDS: Final = (RECORD, BLOCK, SUMMARY, DELETES, DEDUP, STAGED, POSITION)


def key(group: int, kind: bytes, seq: int) -> bytes:
    return _KEY.pack(group, kind, seq)


def seq_of(raw_key: bytes) -> int:
    return int.from_bytes(raw_key[9:17], "big")


class StateBatch(Protocol):
    """Changes of one or several groups that are written atomically."""

    def put(self, raw_key: bytes, value: bytes, /) -> None: ...
    def put_sealed(self, raw_key: bytes, value: bytes, /) -> None:
        """A block that does not grow any more, and may be stored outside of the database."""
        ...

    def delete(self, raw_key: bytes, /) -> None: ...


class BlockReader(Protocol):
    """Reads single records of one group."""

    def get(self, kind: bytes, seq: int, /) -> bytes | None: ...


class BlockFiles(BlockReader, Protocol):
    """The records of one group. Reads see what has been written, not what is queued in a batch."""

    @property
    def group(self) -> int: ...
    def scan(self, kind: bytes, /) -> Iterator[tuple[int, bytes]]:
        """(sequence, value) of one kind, ascending."""
        ...

    def size_in_file(self, seq: int, /) -> int | None:
        """The size of a block that `read_into` can read; None if the block is in the database or
        encrypted: use `get`."""
        ...

    def read_into(self, seq: int, memory: memoryview, /, *, checksum_from: int) -> int:
        """Read such a block into `memory`, without copies. Returns the CRC-32 of its bytes from
        `checksum_from` on. Raises BlockDamaged."""
        ...

    def frozen(self) -> BlockReader:
        """A view that later batches do not change. Raft snapshots are read from it while they are
        sent, which may take long."""
        ...


class StateKeeper(Protocol):
    """The database of all groups: StateDb on disk, or MemoryDb."""

    def files(self, group: int, /) -> BlockFiles: ...

    def change(self, fill: Callable[[StateBatch], Result], /) -> Result:
        """Call `fill` with an empty batch and write the batch; returns the result of `fill`."""
        ...

    def wipe(self, group: int, /) -> None:
        """Delete all records of a group, without reading them: they may be damaged."""
        ...
