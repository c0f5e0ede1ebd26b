"""The duplicate window: recently published message ids and the sequences they were stored as.

Owns: the ids in the order they came, in chunks that are written to disk once each, and the id of
the last message.
May not touch: clocks; the age of an id is measured by stamped times.
Spec: NATS JetStream, Nats-Msg-Id and duplicate_window: an id leaves the window when its age reaches
the window. Deleting or purging the message does not remove its id."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from broker.store.state_keys import DEDUP, BlockFiles, StateBatch, key

CHUNK_IDS = 4096
CHUNK_BYTES = 256 << 10  # the growing chunk is in every checkpoint
LONG_ID = 256  # bytes; only the bytes of an id beyond this count against LONG_BYTES_MAX
LONG_BYTES_MAX = 16 << 20  # of long ids in the window of a stream; beyond it the leader refuses
_encode = msgspec.msgpack.Encoder().encode


class IdChunk(msgspec.Struct, array_like=True):
    """Consecutive ids. The last chunk grows until it holds CHUNK_IDS, or CHUNK_BYTES of them."""

    number: int
    ids: list[bytes]
    seqs: list[int]
    times: list[int]


class DedupImage(msgspec.Struct, array_like=True, frozen=True):
    """The part of the window in the stream's record. In a checkpoint, full chunks have records of
    their own."""

    begin: int  # number of ids of the oldest chunk that have expired
    chunks: list[IdChunk]  # all of them in a snapshot, only the growing one in a checkpoint


_chunk = msgspec.msgpack.Decoder(IdChunk)


@dataclass(slots=True)
class DedupWindow:
    last_id: bytes = b""  # of the last message stored; empty if it had none
    _seqs: dict[bytes, int] = field(default_factory=dict)
    _chunks: deque[IdChunk] = field(default_factory=deque)
    _begin: int = 0
    _next_number: int = 1
    _written: int = 0  # chunks up to this number are on disk
    _expired: list[int] = field(default_factory=list)  # chunks on disk that are to be deleted
    _growing_bytes: int = 0  # of the ids in the last chunk
    _long_bytes: int = 0

    @property
    def overfull(self) -> bool:
        """Whether the ids in the window are so long that no more can be kept: a client may send
        ids of 64 KB."""
        return self._long_bytes > LONG_BYTES_MAX

    def __len__(self) -> int:
        return len(self._seqs)

    def find(self, message_id: bytes) -> int:
        """The sequence it was stored as, 0 if it is not in the window."""
        return self._seqs.get(message_id, 0)

    def add(self, message_id: bytes, *, seq: int, time_ns: int) -> None:
        last = self._chunks[-1] if self._chunks else None
        if last is None or len(last.ids) >= CHUNK_IDS or self._growing_bytes >= CHUNK_BYTES:
            self._chunks.append(IdChunk(self._next_number, [], [], []))
            self._next_number += 1
            self._growing_bytes = 0
        chunk = self._chunks[-1]
        self._growing_bytes += len(message_id)
        self._long_bytes += max(0, len(message_id) - LONG_ID)
        chunk.ids.append(message_id)
        chunk.seqs.append(seq)
        chunk.times.append(time_ns)
        self._seqs[message_id] = seq

    def expire(self, *, now_ns: int, window_ns: int) -> None:
        """Drop ids whose age is at least the window."""
        oldest_kept = now_ns - window_ns
        while self._chunks:
            chunk = self._chunks[0]
            begin = self._begin
            while begin < len(chunk.ids) and chunk.times[begin] <= oldest_kept:
                self._long_bytes -= max(0, len(chunk.ids[begin]) - LONG_ID)
                del self._seqs[chunk.ids[begin]]
                begin += 1
            self._begin = begin
            if begin < len(chunk.ids):
                return
            self._drop_oldest_chunk()

    def _drop_oldest_chunk(self) -> None:
        chunk = self._chunks.popleft()
        self._begin = 0
        if chunk.number <= self._written:
            self._expired.append(chunk.number)

    # -- persistence ------------------------------------------------------------------------------

    def checkpoint(self, batch: StateBatch, group: int) -> DedupImage:
        """Queue the chunks that became full; returns the rest, for the stream's record."""
        for number in self._expired:
            batch.delete(key(group, DEDUP, number))
        self._expired.clear()
        for chunk in self._chunks:
            if self._written < chunk.number and self._is_full(chunk):
                batch.put(key(group, DEDUP, chunk.number), _encode(chunk))
                self._written = chunk.number
        growing = [chunk for chunk in self._chunks if not self._is_full(chunk)]
        return DedupImage(self._begin, growing)

    def _is_full(self, chunk: IdChunk) -> bool:
        return chunk is not self._chunks[-1] or len(chunk.ids) >= CHUNK_IDS

    def image(self) -> DedupImage:
        """The whole window, for a snapshot."""
        return DedupImage(self._begin, list(self._chunks))

    def entries(self) -> list[tuple[bytes, int, int]]:
        """(id, sequence, time) in the order they came."""
        found = [
            entry
            for chunk in self._chunks
            for entry in zip(chunk.ids, chunk.seqs, chunk.times, strict=True)
        ]
        return found[self._begin :]

    @classmethod
    def load(cls, image: DedupImage, files: BlockFiles, *, last_id: bytes) -> DedupWindow:
        """Load the window from the last checkpoint."""
        full = [_chunk.decode(raw) for _, raw in files.scan(DEDUP)]
        window = cls(last_id, _written=full[-1].number if full else 0)
        window._fill(image.begin, [*full, *image.chunks])
        return window

    @classmethod
    def restore(cls, image: DedupImage, *, last_id: bytes) -> DedupWindow:
        """Build the window from a snapshot. No chunk is on disk."""
        window = cls(last_id)
        window._fill(image.begin, image.chunks)
        return window

    def _fill(self, begin: int, chunks: Iterable[IdChunk]) -> None:
        self._chunks.extend(chunks)
        self._begin = begin
        self._seqs = {entry[0]: entry[1] for entry in self.entries()}
        self._long_bytes = sum(max(0, len(one) - LONG_ID) for one in self._seqs)
        if self._chunks:
            self._growing_bytes = sum(map(len, self._chunks[-1].ids))
            self._next_number = self._chunks[-1].number + 1
