"""Serve bulk reads: the stored blocks of a stream, unchanged, in small chunks.

Owns: the pace (one chunk per turn of the event loop), the limit on concurrent scans of a node, and
dropping rows of subjects that were not requested.
May not touch: sockets (`write` and `drain` are arguments), Raft, how blocks are stored.
A scan looks up every block again: retention, purges and new messages may change the store between
two blocks, so no iterator over it is kept across an await.
Spec: broker/scan/protocol.py."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from broker.scan.protocol import (
    CHUNK_BYTES,
    CHUNK_BYTES_MIN,
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
from broker.store.block.block_format import HEADER
from broker.store.block.codec import Block, BlockBuilder, BlockDamaged
from broker.subjects.grammar import matches, valid_subject

CONCURRENT_SCANS_MAX: Final = 8  # above it the answer is BUSY, and the reader tries another replica

Write = Callable[[bytes], None]
Drain = Callable[[], Awaitable[None]]


class ScanStore(Protocol):
    """The part of a message store that a scan uses. Sequences start at 1."""

    @property
    def first_seq(self) -> int: ...
    @property
    def last_seq(self) -> int: ...
    def blocks(self, first: int, last: int, /) -> Iterator[bytes]:
        """Sealed blocks with exactly the stored rows of first..last, ascending."""
        ...


@dataclass(frozen=True, slots=True)
class ScanSource:
    """A stream with a replica on this node. Delete and create change the id."""

    store: ScanStore
    id: str


@dataclass(slots=True)
class Scans:
    """All scans of one node."""

    concurrent_max: int = CONCURRENT_SCANS_MAX
    active: int = 0
    served: int = 0
    refused: int = 0
    abandoned: int = 0

    async def serve(
        self,
        write: Write,
        drain: Drain,
        body: bytes,
        find: Callable[[str], ScanSource | None],
        *,
        permitted: Callable[[str], bool],
    ) -> None:
        """Answer one SCAN line. Invalid requests do not raise. Cancellation ends the scan, and so
        does a ConnectionError from `drain`, which means that the reader has disconnected.
        `permitted(stream)` has told the reader when it returns False; it is asked before the
        stream is looked up, so that a user learns nothing about streams it may not read."""
        try:
            request = decode_request(body)
            check_subjects(request)
            if not permitted(request.stream):
                self.refused += 1
                return
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
        except ConnectionError:
            self.abandoned += 1
        finally:
            self.active -= 1


async def serve_scan(
    write: Write, drain: Drain, store: ScanStore, request: ScanRequest, *, stream_id: str
) -> None:
    """Send the whole answer to a valid request: head, frames and end, or one error line."""
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
        rows = await _send_blocks(write, drain, store, request)
    except BlockDamaged as damage:
        write(encode_end(ScanRefused(ScanCode.DAMAGED, str(damage))))
    except ScanRefused as removed:
        write(encode_end(removed))
    else:
        first = min(max(request.first, head.first_seq), request.last + 1)
        end = ScanEnd(
            last_sent=request.last,
            first_seq_now=store.first_seq,
            deleted=request.last + 1 - first - rows,
        )
        write(encode_end(end))
    await drain()


async def _send_blocks(write: Write, drain: Drain, store: ScanStore, request: ScanRequest) -> int:
    """Return how many stored rows the range has, on any subject."""
    patterns = tuple(pattern.encode() for pattern in request.subjects)
    chunk = min(max(request.max_chunk, CHUNK_BYTES_MIN), CHUNK_BYTES)
    cursor = max(request.first, store.first_seq)
    rows = 0
    while cursor <= request.last:
        if (
            store.first_seq > cursor
        ):  # the reader requests the rest again and decides about the loss
            text = f"messages up to {store.first_seq - 1} were removed during the scan"
            raise ScanRefused(ScanCode.GONE, text, first_seq=store.first_seq)
        raw = next(iter(store.blocks(cursor, request.last)), None)
        if raw is None:
            break
        fields = HEADER.unpack_from(raw)
        count, last_seq = fields[3], fields[-1]
        if last_seq < cursor:
            raise BlockDamaged(f"sequence {cursor} is not in the block that should hold it")
        cursor = last_seq + 1
        rows += count
        wanted = only_subjects(raw, patterns) if patterns else raw
        if not wanted:
            await asyncio.sleep(0)
            continue
        write(frame_header(wanted))
        for at in range(0, len(wanted), chunk):
            write(wanted[at : at + chunk])
            await drain()
            # drain() returns at once while the socket keeps up: give other tasks a turn
            await asyncio.sleep(0)
    return rows


def only_subjects(raw: bytes, patterns: tuple[bytes, ...]) -> bytes:
    """The block without rows that match no pattern; b"" if no row is left."""
    block = Block(raw)
    skip: set[int] = set()
    matched: dict[bytes, bool] = {}
    for subject, start, stop in block.subject_runs():
        if subject not in matched:
            matched[subject] = any(matches(subject, pattern) for pattern in patterns)
        if not matched[subject]:
            skip.update(range(start, stop))
    if not skip:
        return raw
    if len(skip) == block.rows:
        return b""
    builder = BlockBuilder()
    builder.append_block(block, skip=skip)
    return builder.build()


def check_subjects(request: ScanRequest) -> None:
    for pattern in request.subjects:
        if not valid_subject(pattern.encode(), wildcards=True):
            raise ScanRefused(ScanCode.BAD, f"{pattern!r} is not a valid subject")
