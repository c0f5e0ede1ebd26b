"""The duplicate window: which message ids were published lately, and as which sequence.

Owns: ids in the order they came, cut into chunks that are written once each.
May not touch: clocks; an id's age is measured by stamped times.
Spec: JetStream sheet 3.4: an id is forgotten once its age reaches the window; deleting or purging
the message does not make it forgotten."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from broker.store.files import DEDUP, BlockFiles, StateBatch, key

CHUNK_IDS = 4096
_encode = msgspec.msgpack.Encoder().encode


class Chunk(msgspec.Struct, array_like=True):
    """Ids that came one after another. The last chunk grows until it is full."""

    number: int
    ids: list[bytes]
    seqs: list[int]
    times: list[int]


class DedupImage(msgspec.Struct, array_like=True, frozen=True):
    """The part that changes all the time; full chunks are records of their own."""

    begin: int  # how many of the oldest chunk are forgotten already
    chunks: list[Chunk]  # all of them in a snapshot, only the growing one in a checkpoint


_chunk = msgspec.msgpack.Decoder(Chunk)


@dataclass(slots=True)
class DedupWindow:
    _seqs: dict[bytes, int] = field(default_factory=dict)
    _chunks: deque[Chunk] = field(default_factory=deque)
    _begin: int = 0
    _next_number: int = 1
    _written: int = 0  # chunks up to this number are in the files
    _forgotten: list[int] = field(default_factory=list)  # written chunks to delete

    def __len__(self) -> int:
        return len(self._seqs)

    def find(self, message_id: bytes) -> int:
        """The sequence it was stored as, 0 when it is not in the window."""
        return self._seqs.get(message_id, 0)

    def add(self, message_id: bytes, *, seq: int, time_ns: int) -> None:
        if not self._chunks or len(self._chunks[-1].ids) >= CHUNK_IDS:
            self._chunks.append(Chunk(self._next_number, [], [], []))
            self._next_number += 1
        chunk = self._chunks[-1]
        chunk.ids.append(message_id)
        chunk.seqs.append(seq)
        chunk.times.append(time_ns)
        self._seqs[message_id] = seq

    def expire(self, *, now_ns: int, window_ns: int) -> None:
        """Forget ids whose age is the window or more."""
        oldest_kept = now_ns - window_ns
        while self._chunks:
            chunk = self._chunks[0]
            begin = self._begin
            while begin < len(chunk.ids) and chunk.times[begin] <= oldest_kept:
                del self._seqs[chunk.ids[begin]]
                begin += 1
            self._begin = begin
            if begin < len(chunk.ids):
                return
            self._forget_chunk()

    def _forget_chunk(self) -> None:
        chunk = self._chunks.popleft()
        self._begin = 0
        if chunk.number <= self._written:
            self._forgotten.append(chunk.number)

    # -- to disk and back -------------------------------------------------------------------------

    def checkpoint(self, batch: StateBatch, group: int) -> DedupImage:
        """Queue chunks that are full by now; the rest goes into the stream's record."""
        for number in self._forgotten:
            batch.delete(key(group, DEDUP, number))
        self._forgotten.clear()
        for chunk in self._chunks:
            if self._written < chunk.number and len(chunk.ids) >= CHUNK_IDS:
                batch.put(key(group, DEDUP, chunk.number), _encode(chunk))
                self._written = chunk.number
        growing = [chunk for chunk in self._chunks if len(chunk.ids) < CHUNK_IDS]
        return DedupImage(self._begin, growing)

    def image(self) -> DedupImage:
        """Everything, for a snapshot."""
        return DedupImage(self._begin, list(self._chunks))

    def entries(self) -> list[tuple[bytes, int, int]]:
        """(id, sequence, time) in order, however it is cut into chunks."""
        found = [
            entry
            for chunk in self._chunks
            for entry in zip(chunk.ids, chunk.seqs, chunk.times, strict=True)
        ]
        return found[self._begin :]

    @classmethod
    def load(cls, image: DedupImage, files: BlockFiles) -> DedupWindow:
        full = [_chunk.decode(raw) for _, raw in files.scan(DEDUP)]
        written = full[-1].number if full else 0
        return cls._of(image.begin, [*full, *image.chunks], written=written, forgotten=[])

    @classmethod
    def restore(cls, image: DedupImage, files: BlockFiles) -> DedupWindow:
        """From a snapshot; what was written before is removed with the next checkpoint."""
        present = [number for number, _ in files.scan(DEDUP)]
        return cls._of(image.begin, image.chunks, written=0, forgotten=present)

    @classmethod
    def _of(
        cls, begin: int, chunks: Iterable[Chunk], *, written: int, forgotten: list[int]
    ) -> DedupWindow:
        window = cls()
        window._written, window._forgotten = written, forgotten
        window._chunks.extend(chunks)
        window._begin = begin
        window._seqs = {entry[0]: entry[1] for entry in window.entries()}
        if window._chunks:
            window._next_number = window._chunks[-1].number + 1
        return window
