"""The state column in memory: for memory streams and tests.

Owns: a dictionary with the same keys and the same interface as StateDb; its content is lost when
the process ends.
May not touch: disks, what the values mean.
Spec: docs/decisions/0005-memory-streams-are-in-memory.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from broker.store.block.block_format import BlockDamaged
from broker.store.state_keys import BlockReader, Result, StateBatch, key, seq_of


@dataclass(slots=True)
class MemoryBatch:
    """Changes in order; a value of None deletes the key."""

    changes: list[tuple[bytes, bytes | None]] = field(default_factory=list)

    def put(self, raw_key: bytes, value: bytes) -> None:
        self.changes.append((raw_key, value))

    put_sealed = put

    def delete(self, raw_key: bytes) -> None:
        self.changes.append((raw_key, None))


@dataclass(slots=True)
class MemoryDb:
    """One per memory stream."""

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

    def wipe(self, group: int) -> None:
        prefix = group.to_bytes(8, "big")
        for raw_key in [k for k in self.values if k.startswith(prefix)]:
            del self.values[raw_key]

    def flush(self) -> None:
        """Nothing to do."""

    def files(self, group: int) -> MemoryFiles:
        return MemoryFiles(group, self.values)


@dataclass(slots=True)
class MemoryFiles:
    """The records of one group."""

    group: int
    values: dict[bytes, bytes]

    def get(self, kind: bytes, seq: int) -> bytes | None:
        return self.values.get(key(self.group, kind, seq))

    def scan(self, kind: bytes) -> Iterator[tuple[int, bytes]]:
        prefix = key(self.group, kind, 0)[:9]
        for raw_key in sorted(k for k in self.values if k.startswith(prefix)):
            yield seq_of(raw_key), self.values[raw_key]

    def size_in_file(self, seq: int) -> int | None:
        return None

    def read_into(self, seq: int, memory: memoryview, *, checksum_from: int) -> int:
        raise BlockDamaged("there are no files")

    def frozen(self) -> BlockReader:
        prefix = self.group.to_bytes(8, "big")
        ours = {k: v for k, v in self.values.items() if k.startswith(prefix)}
        return MemoryFiles(self.group, ours)
