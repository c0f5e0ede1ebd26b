"""Serving a bulk read: the stored blocks of one stream, as they are, in small portions.

Owns: the pace (a chunk, then the loop's other work), the cap on scans of a node, and dropping what
no reader may see: deleted rows and rows of other subjects.
May not touch: sockets (`write` and `drain` are handed in), Raft, how blocks are stored.
A scan asks the store for one block at a time, afresh: retention, purge and new messages may change
the store between two blocks, and no iterator over it lives across an await.
Spec: protocol.py of this package."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

from broker.scan.protocol import (
    CHUNK_BYTES,
    CHUNK_BYTES_MIN,
    DELETED_RANGES_MAX,
    ScanCode,
    ScanEnd,
    ScanHead,
    ScanRefused,
    ScanRequest,
    decode_request,
    encode_end,
    encode_error,
    encode_head,
    frame_header,
)
from broker.store.block import Block, BlockBuilder, BlockDamaged
from broker.store.block_py import HEADER
from broker.subjects.grammar import matches, valid_subject

CONCURRENT_SCANS_MAX: Final = 8  # beyond it a reader is told BUSY and goes to another replica

Write = Callable[[bytes], None]
Drain = Callable[[], Awaitable[None]]


class ScanStore(Protocol):
    """What a scan needs of a message store. Sequences start at 1."""

    @property
    def first_seq(self) -> int: ...
    @property
    def last_seq(self) -> int: ...
    def blocks(self, first: int, last: int, /) -> Iterator[bytes]:
        """Blocks that hold any of first..last, ascending; deleted rows are still in them."""
        ...

    def deleted_ranges(self, first: int, last: int, /) -> Iterable[tuple[int, int]]:
        """Deleted sequences inside first..last as (first, last) ranges, ascending."""
        ...


@dataclass(frozen=True, slots=True)
class ScanSource:
    """A stream this node has a replica of. The id differs after delete and create."""

    store: ScanStore
    id: str


@dataclass(slots=True)
class Scans:
    """All scans of one node."""

    concurrent_max: int = CONCURRENT_SCANS_MAX
    active: int = 0
    served: int = 0
    refused: int = 0

    async def serve(
        self, write: Write, drain: Drain, body: bytes, find: Callable[[str], ScanSource | None]
    ) -> None:
        """Answer one SCAN line. Nothing a reader sends raises; cancelling it ends the scan."""
        try:
            request = decode_request(body)
            check_subjects(request)
            source = find(request.stream)
            if source is None:
                raise ScanRefused(ScanCode.NOSTREAM, f"no replica of {request.stream} here")
            if self.active >= self.concurrent_max:
                raise ScanRefused(ScanCode.BUSY, f"{self.active} scans are running")
        except ScanRefused as refusal:
            self.refused += 1
            write(encode_error(refusal))
            return
        self.active += 1
        try:
            await serve_scan(write, drain, source.store, request, stream_id=source.id)
            self.served += 1
        finally:
            self.active -= 1


async def serve_scan(
    write: Write, drain: Drain, store: ScanStore, request: ScanRequest, *, stream_id: str
) -> None:
    """The whole answer to a valid request: head, frames, end; or one error line."""
    if request.id and request.id != stream_id:
        gone = ScanRefused(ScanCode.GONE, f"{request.stream} was deleted and created again")
        write(encode_error(gone))
        return
    if request.last > store.last_seq:
        text = f"this replica has applied {store.last_seq}"
        write(encode_error(ScanRefused(ScanCode.BEHIND, text, applied=store.last_seq)))
        return
    head = ScanHead(
        id=stream_id, first_seq=store.first_seq, last_seq=store.last_seq, applied=store.last_seq
    )
    write(encode_head(head))
    try:
        await _send_blocks(write, drain, store, request)
    except BlockDamaged as damage:
        write(encode_end(ScanRefused(ScanCode.DAMAGED, str(damage))))
    except ScanRefused as overtaken:
        write(encode_end(overtaken))
    else:
        write(encode_end(_end(store, request)))
    await drain()


async def _send_blocks(write: Write, drain: Drain, store: ScanStore, request: ScanRequest) -> None:
    patterns = tuple(pattern.encode() for pattern in request.subjects)
    chunk = min(max(request.max_chunk, CHUNK_BYTES_MIN), CHUNK_BYTES)
    cursor = max(request.first, store.first_seq)
    while cursor <= request.last:
        if store.first_seq > cursor:  # the reader judges the loss: it asks again from its cursor
            text = f"messages up to {store.first_seq - 1} were removed during the scan"
            raise ScanRefused(ScanCode.GONE, text, first_seq=store.first_seq)
        raw = next(iter(store.blocks(cursor, request.last)), None)
        if raw is None:
            return
        last_seq = HEADER.unpack_from(raw)[-1]
        if last_seq < cursor:
            raise BlockDamaged(f"sequence {cursor} is not in the block that should hold it")
        cursor = last_seq + 1
        allowed = _allowed(raw, store, patterns)
        if allowed is None:
            await asyncio.sleep(0)
            continue
        write(frame_header(allowed))
        for at in range(0, len(allowed), chunk):
            write(allowed[at : at + chunk])
            await drain()
            # drain() returns at once while the socket keeps up, and the loop would starve
            await asyncio.sleep(0)


def _allowed(raw: bytes, store: ScanStore, patterns: tuple[bytes, ...]) -> bytes | None:
    """The block without the rows this reader may not see; None when no row is left."""
    fields = HEADER.unpack_from(raw)
    first_seq, last_seq = fields[5], fields[-1]
    deleted = list(store.deleted_ranges(first_seq, last_seq))
    if not deleted and not patterns:
        return raw
    block = Block(raw)
    skip: set[int] = set()
    for low, high in deleted:
        skip.update(range(block.first_at_or_after(low), block.first_at_or_after(high + 1)))
    if patterns:
        wanted: dict[bytes, bool] = {}
        for subject, start, stop in block.subject_runs():
            if subject not in wanted:
                wanted[subject] = any(matches(subject, pattern) for pattern in patterns)
            if not wanted[subject]:
                skip.update(range(start, stop))
    if not skip:
        return raw
    if len(skip) == block.rows:
        return None
    builder = BlockBuilder()
    builder.append_block(block, skip=skip)
    return builder.build()


def _end(store: ScanStore, request: ScanRequest) -> ScanEnd:
    first = max(request.first, store.first_seq)
    deleted: list[tuple[int, int]] = []
    if first <= request.last:
        ranges = store.deleted_ranges(first, request.last)
        deleted = list(islice(ranges, DELETED_RANGES_MAX + 1))
    return ScanEnd(
        last_sent=request.last,
        first_seq_now=store.first_seq,
        deleted=tuple(deleted[:DELETED_RANGES_MAX]),
        deleted_more=len(deleted) > DELETED_RANGES_MAX,
    )


def check_subjects(request: ScanRequest) -> None:
    for pattern in request.subjects:
        if not valid_subject(pattern.encode(), wildcards=True):
            raise ScanRefused(ScanCode.BAD, f"{pattern!r} is no subject")
