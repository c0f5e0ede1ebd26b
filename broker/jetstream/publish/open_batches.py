"""Open atomic batches: members that wait for the commit of their batch.

Owns: the members of open batches, the bounds on them, and when an idle batch is abandoned.
May not touch: the checks and the commit (atomic_batch.py), clocks.
Spec: NATS ADR-50 (atomic batch publishing);
docs/decisions/0004-time-and-batches-are-replicated.md.

Members are part of the replicated state, so an open batch survives a change of leader."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from broker.jetstream.times import NS_PER_S
from broker.store.state_keys import STAGED, BlockFiles, StateBatch, key

MEMBERS_MAX: Final = 1000
OPEN_MAX: Final = 50
STAGED_BYTES_MAX: Final = 128 << 20  # per stream; above it every member is refused
IDLE_NS: Final = 10 * NS_PER_S
_encode: Final = msgspec.msgpack.Encoder().encode

Member = tuple[bytes, bytes, bytes]  # subject, headers, data


class OpenBatch(msgspec.Struct, array_like=True):
    number: int  # key of its record on disk; rises with every batch
    id: bytes
    touched_ns: int
    members: list[Member]


_batch: Final = msgspec.msgpack.Decoder(OpenBatch)


@dataclass(slots=True)
class AtomicBatches:
    """The open batches of one stream, in the order they began."""

    _open: dict[bytes, OpenBatch] = field(default_factory=dict)
    _next_number: int = 1
    _nbytes: int = 0
    _unwritten: set[int] = field(default_factory=set)
    _written: set[int] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self._open)

    @property
    def nbytes(self) -> int:
        """Of all members."""
        return self._nbytes

    def get(self, batch_id: bytes) -> OpenBatch | None:
        return self._open.get(batch_id)

    def begin(self, batch_id: bytes, now_ns: int) -> OpenBatch | None:
        """None if too many batches are open, or too many bytes are staged."""
        if len(self._open) >= OPEN_MAX or self._nbytes > STAGED_BYTES_MAX:
            return None
        batch = self._open[batch_id] = OpenBatch(self._next_number, batch_id, now_ns, [])
        self._unwritten.add(batch.number)
        self._next_number += 1
        return batch

    def add(self, batch: OpenBatch, member: Member, now_ns: int) -> None:
        batch.members.append(member)
        batch.touched_ns = now_ns
        self._nbytes += sum(map(len, member))
        self._unwritten.add(batch.number)

    def full(self) -> bool:
        return self._nbytes > STAGED_BYTES_MAX

    def end(self, batch: OpenBatch) -> None:
        """The batch was committed or abandoned."""
        del self._open[batch.id]
        self._nbytes -= sum(len(part) for member in batch.members for part in member)
        self._unwritten.discard(batch.number)

    def next_expiry(self) -> int | None:
        touched = [batch.touched_ns for batch in self._open.values()]
        return min(touched) + IDLE_NS if touched else None

    def expire(self, now_ns: int) -> list[bytes]:
        """Drop the batches that are idle for too long; returns their ids."""
        idle = [b for b in self._open.values() if b.touched_ns + IDLE_NS <= now_ns]
        for batch in idle:
            self.end(batch)
        return [batch.id for batch in idle]

    # -- persistence ------------------------------------------------------------------------------

    def checkpoint(self, batch: StateBatch, group: int) -> None:
        """Queue the batches that changed, one record each."""
        present = {staged.number: staged for staged in self._open.values()}
        for number in sorted(self._written - present.keys()):
            batch.delete(key(group, STAGED, number))
        for number in sorted(self._unwritten):
            batch.put(key(group, STAGED, number), _encode(present[number]))
        self._written = set(present)
        self._unwritten.clear()

    def image(self) -> list[OpenBatch]:
        """All open batches, for a snapshot."""
        return list(self._open.values())

    @classmethod
    def load(cls, files: BlockFiles) -> AtomicBatches:
        """Load the open batches from the last checkpoint."""
        found = [_batch.decode(raw) for _, raw in files.scan(STAGED)]
        return cls._of(found, written={batch.number for batch in found}, unwritten=set())

    @classmethod
    def restore(cls, images: list[OpenBatch]) -> AtomicBatches:
        """Build the open batches from a snapshot. None of them is on disk."""
        return cls._of(images, written=set(), unwritten={image.number for image in images})

    @classmethod
    def _of(
        cls, images: list[OpenBatch], *, written: set[int], unwritten: set[int]
    ) -> AtomicBatches:
        return cls(
            {image.id: image for image in images},
            max((image.number + 1 for image in images), default=1),
            sum(len(part) for image in images for member in image.members for part in member),
            unwritten,
            written,
        )
