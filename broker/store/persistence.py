"""Persistence of a message store: checkpoints, loading, compaction, snapshots, the digest.

Owns: the records of a store (blocks, summaries, deletes, counters), their writing and loading, the
chunks of a snapshot, and the digest.
May not touch: the Raft log. Entries after the last checkpoint are replayed from it, so the log is
truncated only below what was flushed.
Spec: docs/ARCHITECTURE.md, "Storage" and "Invariants" (replicas at the same index have the
same state)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from struct import Struct as Packing
from typing import Final

import msgspec
from pyroaring import BitMap64

from broker.store.block.codec import Block, BlockBuilder, BlockDamaged
from broker.store.block.packing import pack
from broker.store.index import subject_hashes
from broker.store.index.subject_filter import SubjectFilter
from broker.store.messages import MessageStore
from broker.store.search import live_block, live_stretches
from broker.store.segments import (
    SEAL_BYTES,
    SEAL_ROWS,
    Segment,
    SegmentSummary,
    View,
)
from broker.store.state_keys import BLOCK, DELETES, SUMMARY, StateBatch, key

LIVE_SHARE: Final = 4  # a block is compacted when at most 1/4 of its rows is stored
COMPACTIONS_PER_CHECKPOINT: Final = 2
ROWS_PER_PART: Final = 2048  # rows of blocks that are prepared in one part
CHECKPOINT_BYTES: Final = 2 << 20  # copying a larger batch takes milliseconds per MB
UNWRITTEN_BYTES_MAX: Final = 32 << 20  # of all streams: beyond it each writes a checkpoint
_EVERYTHING: Final = SubjectFilter(())
_LENGTH: Final = Packing("<I")
_ROW: Final = Packing("<qqIII")
_encode = msgspec.msgpack.Encoder().encode


class StoreImage(msgspec.Struct, array_like=True, frozen=True):
    """The counters. They are part of the stream's record, so that they match its index."""

    first_seq: int = 1
    last_seq: int = 0
    last_time: int = 0
    messages: int = 0
    bytes: int = 0


class DeletedRows(msgspec.Struct, array_like=True, frozen=True):
    """Which rows of a block are removed. Only written for blocks with removed rows."""

    live: int
    live_size: int
    deleted: bytes  # a serialized bitmap; empty if only rows below first_seq are removed


class SegmentImage(msgspec.Struct, array_like=True, frozen=True):
    """Header of a snapshot chunk; the block follows."""

    first_seq: int
    live: int
    live_size: int
    deleted: bytes
    deadlines: list[int] = []


_summary: Final = msgspec.msgpack.Decoder(SegmentSummary)
_deletes: Final = msgspec.msgpack.Decoder(DeletedRows)
_segment_image: Final = msgspec.msgpack.Decoder(SegmentImage)


def image(store: MessageStore) -> StoreImage:
    return StoreImage(store.first_seq, store.last_seq, store.last_time, store.messages, store.bytes)


# -- checkpoints ----------------------------------------------------------------------------------


def needs_checkpoint(store: MessageStore) -> bool:
    """True if so many bytes are unwritten that a checkpoint is due. This becomes true when a block
    is sealed, which is a good time: the growing block, which is written too, is small then."""
    unwritten = store.segments.unwritten_bytes
    crowded = store.segments.cache.unwritten_bytes > UNWRITTEN_BYTES_MAX
    return unwritten > CHECKPOINT_BYTES or (crowded and unwritten > 0)


def overdue(store: MessageStore) -> bool:
    """Backpressure: true if so many bytes are unwritten that no entry may be applied before a
    checkpoint."""
    return store.segments.unwritten_bytes > 4 * CHECKPOINT_BYTES


def crowded(store: MessageStore) -> bool:
    """The same, for a store whose last checkpoint waits for its blocks to be on disk: entries wait
    with it."""
    unwritten = store.segments.unwritten_bytes
    return unwritten > 4 * CHECKPOINT_BYTES or (
        unwritten > 0 and store.segments.cache.unwritten_bytes > 3 * UNWRITTEN_BYTES_MAX // 2
    )


def overdue_by_far(store: MessageStore) -> bool:
    """Entries that were applied nevertheless, such as one of many megabytes: the checkpoint is
    written without its files."""
    unwritten = store.segments.unwritten_bytes
    return unwritten > 12 * CHECKPOINT_BYTES or (
        unwritten > 0 and store.segments.cache.unwritten_bytes > 2 * UNWRITTEN_BYTES_MAX
    )


def work_ahead(store: MessageStore) -> bool:
    """Do a part of the next checkpoint's work; False if nothing is left. For a block with many
    rows a part takes milliseconds, so the caller does one part per loop turn. Blocks of a few
    large messages are done together: their stream may fill more than one of them per turn."""
    segments = store.segments
    rows = 0
    for segment in segments.all:
        if segment.written or segment is segments.tail:
            continue
        if segment.summary is not None and (segment.packed is not None or not segments.packs()):
            continue
        if rows and rows + segment.rows > ROWS_PER_PART:
            return True
        rows += segment.rows
        if segment.summary is not None:
            segment.packed = pack(_raw(store, segment))
            return True  # takes as long as a whole part
        if segment.subjects is None:
            segments.subjects(segment)
        else:
            segment.summary = _encode(_summarize(store, segment))
            segment.hashes = subject_hashes(segment.subjects)
    if rows:
        return True
    if segments.spent:
        segments.spent.pop()
    return bool(segments.spent)


def compact(store: MessageStore) -> bool:
    """Rewrite one block in which most rows are removed, to free their space; the next checkpoint
    writes it. The digest does not change. False if no block qualifies."""
    segments = store.segments
    for segment in segments.all:
        if segment.live * LIVE_SHARE <= segment.rows and segment is not segments.tail:
            segments.shrink(segment, live_block(segments, segment))
            return True
    return False


def unwritten_bytes(store: MessageStore) -> int:
    segments = store.segments
    growing = segments.tail is not None and not segments.tail.written
    return segments.unwritten_bytes + (segments.builder.nbytes if growing else 0)


def growing_bytes(store: MessageStore) -> int:
    """Of the growing block, which is in memory, written or not."""
    segments = store.segments
    return segments.builder.nbytes if segments.tail is not None else 0


def checkpoint(store: MessageStore, batch: StateBatch) -> int:
    """Queue everything that changed. The growing block is written as it is now, and again later.
    Returns how many bytes of blocks were queued.

    Call `written` once the batch is in the database. If writing fails, the replica must stop."""
    segments = store.segments
    group = segments.files.group
    for first_seq in segments.discarded:  # before the puts: a restored store may reuse these keys
        for kind in (BLOCK, SUMMARY, DELETES):
            batch.delete(key(group, kind, first_seq))
    segments.discarded.clear()
    store.deadlines.prune(store.messages, store.has)
    queued = 0
    for segment in segments.all:
        if not segment.written:
            raw = _raw(store, segment)
            stored = _stored(store, segment, raw)
            put = batch.put if segment is segments.tail else batch.put_sealed
            put(key(group, BLOCK, segment.first_seq), stored)
            summary = segment.summary or _encode(_summarize(store, segment))
            batch.put(key(group, SUMMARY, segment.first_seq), summary)
            segment.summary = segment.packed = None
            segment.nbytes = len(raw)
            segment.written = True
            segment.deletes_written = segment.live == segment.rows
            if segment.deletes_written:  # the record may exist from before a compaction
                batch.delete(key(group, DELETES, segment.first_seq))
            queued += len(stored)
        if not segment.deletes_written:
            deletes = DeletedRows(segment.live, segment.live_size, _bitmap(segment))
            batch.put(key(group, DELETES, segment.first_seq), _encode(deletes))
            segment.deletes_written = True
    return queued


def written(store: MessageStore) -> None:
    """The last checkpoint's batch is in the database: move its blocks to the cache."""
    segments = store.segments
    for segment in segments.all:
        if segment.written and segment.view is not None and segment is not segments.tail:
            segments.unwritten_bytes -= segment.nbytes
            segments.cache.put(segments.files.group, segment.first_seq, segment.view)
            segment.view = None
            if segment.subjects is not None:
                segments.spent.append(segment.subjects)
                segment.set_subjects(segment.subjects)


def load(store: MessageStore, state: StoreImage) -> None:
    """Bring an empty store to the state of its last checkpoint."""
    _set_counters(store, state)
    segments = store.segments
    deletes = {seq: _deletes.decode(raw) for seq, raw in segments.files.scan(DELETES)}
    for first_seq, raw in segments.files.scan(SUMMARY):
        summary = _summary.decode(raw)
        segment = Segment(
            first_seq,
            last_seq=summary.last_seq,
            rows=summary.rows,
            live=summary.rows,
            live_size=summary.size,
            nbytes=summary.nbytes,
            max_time=summary.max_time,
            written=True,
        )
        segment.set_subjects(summary.subjects)
        if first_seq in deletes:
            _apply_deletes(segment, deletes[first_seq])
        segments.add(segment)
        store.deadlines.load(summary.deadlines)
        _index(store, segment, summary)
    _reopen_tail(store)
    _check(store)


# -- snapshots ------------------------------------------------------------------------------------


def snapshot(store: MessageStore) -> Iterator[bytes]:
    """One chunk per segment. Blocks in memory are taken now, the others are read when needed."""
    segments = store.segments
    frozen = segments.files.frozen()
    heads: list[tuple[SegmentImage, bytes | None]] = []
    for segment in segments.all:
        head = SegmentImage(
            segment.first_seq,
            segment.live,
            segment.live_size,
            _bitmap(segment),
            store.deadlines.of_range(segment.first_seq, segment.last_seq),
        )
        heads.append((head, _raw(store, segment) if segment.view is not None else None))

    def chunks() -> Iterator[bytes]:
        for head, held in heads:
            raw = held if held is not None else segments.read_raw(frozen, head.first_seq)
            encoded = _encode(head)
            yield _LENGTH.pack(len(encoded)) + encoded + raw

    return chunks()


def restore(store: MessageStore, state: StoreImage, chunks: Iterable[bytes]) -> None:
    """Replace the whole content. Older records have been wiped by the caller; they are not searched
    for, because other records in the database may be damaged."""
    segments = store.segments
    segments.clear()
    store.index.clear()
    store.deadlines.clear()
    _set_counters(store, state)
    for chunk in chunks:
        (size,) = _LENGTH.unpack_from(chunk)
        head = _segment_image.decode(memoryview(chunk)[_LENGTH.size : _LENGTH.size + size])
        block = Block(bytes(memoryview(chunk)[_LENGTH.size + size :]))
        segment = Segment(
            head.first_seq,
            last_seq=block.last_seq,
            rows=block.rows,
            live=block.rows,
            nbytes=block.nbytes,
            max_time=block.max_time,
            view=View(block),
        )
        segment.live_size = store.sizing.of_block(block)
        segment.subjects = block.subject_summary()
        if head.live != block.rows:
            _apply_deletes(segment, DeletedRows(head.live, head.live_size, head.deleted))
            segment.deletes_written = False
        segments.add(segment)
        store.deadlines.load(head.deadlines)
        segments.unwritten_bytes += segment.nbytes
        _index(store, segment, None)
    _reopen_tail(store)
    _check(store)


def digest(store: MessageStore) -> bytes:
    """Digest of the stored messages, however they are cut into blocks. Reads everything: for
    checks only."""
    state = sha256(_encode(image(store)))
    segments = store.segments
    for segment in segments.all:
        rows = segments.view(segment).rows
        end = segment.last_seq + 1
        for begin, stop in live_stretches(segments, segment, _EVERYTHING, start=0, stop=end):
            for i in range(begin, stop):
                subject, headers, data = rows.subject(i), rows.headers(i), rows.data(i)
                facts = (rows.seq(i), rows.time(i), len(subject), len(headers), len(data))
                state.update(_ROW.pack(*facts) + subject + headers + data)
    return state.digest()


# -- helpers --------------------------------------------------------------------------------------


def _raw(store: MessageStore, segment: Segment) -> bytes:
    segments = store.segments
    if segment is segments.tail:
        return segments.builder.build()
    rows = segments.view(segment).rows
    assert isinstance(rows, Block)
    return bytes(rows.raw)


def _stored(store: MessageStore, segment: Segment, raw: bytes) -> bytes:
    """The block as it is written. A growing one will be written again and is not compressed."""
    if segment is store.segments.tail or not store.segments.packs():
        return raw
    return segment.packed if segment.packed is not None else pack(raw)


def _summarize(store: MessageStore, segment: Segment) -> SegmentSummary:
    view = store.segments.view(segment)
    subjects = store.segments.subjects(segment)
    if segment.live == segment.rows:
        size = segment.live_size
    else:
        size = store.sizing.of_stretch(view.rows, view.columns, 0, segment.rows)
    last_sizes: list[int] = []
    if store.trail_max:
        of_row, rows = store.sizing.of_row, view.rows
        last_sizes = [of_row(rows, facts[2]) for facts in subjects.values()]
    if not segment.contiguous:
        seq, first = view.rows.seq, segment.first_seq
        subjects = {
            subject: [count, seq(low) - first, seq(high) - first]
            for subject, (count, low, high) in subjects.items()
        }
    return SegmentSummary(
        segment.last_seq,
        segment.rows,
        segment.nbytes,
        segment.max_time,
        size,
        subjects,
        last_sizes,
        store.deadlines.of_range(segment.first_seq, segment.last_seq),
    )


def _bitmap(segment: Segment) -> bytes:
    raw: bytes = segment.deleted.serialize() if segment.deleted is not None else b""
    return raw


def _apply_deletes(segment: Segment, deletes: DeletedRows) -> None:
    segment.live = deletes.live
    segment.live_size = deletes.live_size
    segment.deleted = BitMap64.deserialize(deletes.deleted) if deletes.deleted else None


def _index(store: MessageStore, segment: Segment, summary: SegmentSummary | None) -> None:
    """Add a loaded segment to the subject index; reads its block only if rows are removed."""
    home = segment.first_seq
    added = store.index.added
    if summary is not None and segment.live == segment.rows:
        sizes = iter(summary.last_sizes) if store.trail_max else iter(())
        for subject, (count, low, high) in summary.subjects.items():
            entry = added(subject, count=count, first=home + low, last=home + high)
            if store.trail_max:
                size = next(sizes, 0)
                entry.trail_grew(count, (home + high, size) if size else ())
        return
    segments = store.segments
    rows = segments.view(segment).rows
    end = segment.last_seq + 1
    for begin, stop in live_stretches(segments, segment, _EVERYTHING, start=0, stop=end):
        for i in range(begin, stop):
            seq = rows.seq(i)
            entry = added(rows.subject(i), count=1, first=seq, last=seq)
            if store.trail_max:
                entry.trail_grew(1, (seq, store.sizing.of_row(rows, i)))


def _reopen_tail(store: MessageStore) -> None:
    """Make the last block the growing one again, if it is small."""
    segments = store.segments
    if not segments.all:
        return
    segment = segments.all[-1]
    if segment.rows >= SEAL_ROWS or segment.nbytes >= SEAL_BYTES:
        return
    block = segments.view(segment).rows
    assert isinstance(block, Block)
    if segment.view is not None:
        segments.unwritten_bytes -= segment.nbytes
    segments.cache.discard(segments.files.group, segment.first_seq)
    segments.builder = BlockBuilder(segment.first_seq)
    segments.builder.append_block(block)
    segment.view = View(segments.builder)
    segment.subjects = segment.hashes = None
    segments.tail = segment


def _set_counters(store: MessageStore, state: StoreImage) -> None:
    store.segments.floor = store.index.floor = state.first_seq
    store.last_seq = state.last_seq
    store.last_time = state.last_time
    store.messages = state.messages
    store.bytes = state.bytes


def _check(store: MessageStore) -> None:
    """Compare the counters with the loaded segments. Raises BlockDamaged if they differ."""
    live = sum(segment.live for segment in store.segments.all)
    size = sum(segment.live_size for segment in store.segments.all)
    if (live, size) != (store.messages, store.bytes):
        raise BlockDamaged(f"{live} messages, {size} bytes where {image(store)} was recorded")
