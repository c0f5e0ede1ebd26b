"""Serve bulk reads: the stored blocks of a stream, in small chunks.

Owns: the pace of a scan: one chunk per turn, and pauses while the node writes its log.
May not touch: which rows a request selects (selection.py), sockets (`write` and `drain` are
arguments), Raft, how blocks are stored; how many scans there are (admission.py).
A scan looks up every block by sequence: retention, purges and new messages may change the store
between two blocks, so no iterator over it is kept across an await. Reading, filtering and writing
happen in turns of the server's fair queue, which shares the loop between accounts and connections;
while a scan waits for its reader, it takes no turn.
Spec: broker/scan/protocol.py."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

from broker.scan.admission import BLOCK_BYTES, BlockMemory, BorrowedMemory, ScanAdmission
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
    same_incarnation,
)
from broker.scan.selection import Found, RowPicker, Selection
from broker.store.block.codec import BlockDamaged
from broker.store.segments import Segments
from broker.subjects.grammar import valid_subject

T = TypeVar("T")
SCANS: Final = "scans"  # stands for a connection in the fair queue of an account
WRITING_S: Final = 0.05  # after a flush of the log, publishers are assumed to wait for the next
SHARE_BESIDE_WRITES: Final = 0.25  # of the time of the event loop, for all scans together
PAUSE_S_MIN: Final = 0.001  # the resolution of the loop's timers
Write = Callable[[bytes | memoryview], None]
Drain = Callable[[], Awaitable[None]]


class ScanStore(Protocol):
    """The part of a message store that a scan uses. Sequences start at 1."""

    @property
    def first_seq(self) -> int: ...
    @property
    def last_seq(self) -> int: ...
    @property
    def segments(self) -> Segments: ...


@dataclass(frozen=True, slots=True)
class ScanSource:
    """A stream with a replica on this node. Delete and create change the id."""

    store: ScanStore
    id: str


class ScanQueue(Protocol):
    """The fair queue of the server."""

    def wait(
        self, act: Callable[[], None], account: Hashable = None, connection: Hashable = None
    ) -> None:
        """Call `act` in a later turn of the event loop."""


@dataclass(frozen=True, slots=True)
class ScanReader:
    """The reader's connection. If `permitted(stream)` returns False, it has sent the -ERR."""

    account: str
    write: Write
    drain: Drain
    permitted: Callable[[str], bool]


@dataclass(slots=True)
class WritersFirst:
    """How long scans pause so that publishers get their acks in time.

    A publish takes several turns of the loop on each node that stores it, and would wait for a
    chunk of a scan in each of them. While the node writes its log, scans use a share of the time
    and leave the rest idle, which also helps the other processes of the machine. A node that stores
    nothing serves scans at full speed."""

    flushes: Callable[[], int] = lambda: 0  # how often this node has flushed its log
    _counted: int = 0
    _written_at: float = -WRITING_S
    _free_at: float = 0.0

    def used(self, now: float, used_s: float) -> None:
        """A turn of a scan took `used_s` and ended now."""
        count = self.flushes()
        if count != self._counted:
            self._counted, self._written_at = count, now
        if now - self._written_at < WRITING_S:
            self._free_at = max(self._free_at, now - used_s) + used_s / SHARE_BESIDE_WRITES

    def pause_s(self, now: float) -> float:
        """The pause before the next turn of a scan; 0: none."""
        pause = self._free_at - now
        return pause if pause >= PAUSE_S_MIN else 0.0


@dataclass(frozen=True, slots=True)
class ScanTurns:
    """Turns of scans: one per account and turn of the loop, the scans of an account one after the
    other. So an account with twenty scans gets no more of the loop than one with a single scan."""

    queue: ScanQueue
    writers: WritersFirst = field(default_factory=WritersFirst)
    lines: dict[str, deque[Callable[[], None]]] = field(default_factory=dict)  # never empty

    async def turn(self, account: str, work: Callable[[], T]) -> T:
        """Call `work` in a turn of this account. Raises what it raises."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def act() -> None:
            if done.done():
                return  # cancelled
            try:
                done.set_result(work())
            except Exception as problem:  # noqa: BLE001 - raised in the task that waits
                done.set_exception(problem)

        line = self.lines.get(account)
        if line is None:
            self.lines[account] = deque([act])
            self._enter(account)
        else:
            line.append(act)
        return await done

    def _enter(self, account: str) -> None:
        pause_s = self.writers.pause_s(time.perf_counter())
        if pause_s:
            asyncio.get_running_loop().call_later(pause_s, self._wait, account)
        else:
            self._wait(account)

    def _wait(self, account: str) -> None:
        self.queue.wait(partial(self._next, account), account, SCANS)

    def _next(self, account: str) -> None:
        line = self.lines[account]
        began = time.perf_counter()
        line.popleft()()
        ended = time.perf_counter()
        self.writers.used(ended, ended - began)
        if line:
            self._enter(account)
        else:
            del self.lines[account]


@dataclass(frozen=True, slots=True)
class _Pace:
    """The turns and the memory of one scan."""

    reader: ScanReader
    turns: ScanTurns
    admission: ScanAdmission
    memory: BlockMemory = field(default_factory=BlockMemory)

    async def turn(self, work: Callable[[], T]) -> T:
        return await self.turns.turn(self.reader.account, work)


@dataclass(slots=True)
class Scans:
    """All scans of one node."""

    turns: ScanTurns
    admission: ScanAdmission = field(default_factory=ScanAdmission)
    memory: BlockMemory = field(default_factory=BlockMemory)
    bytes_sent: int = 0
    served: int = 0
    refused: int = 0
    abandoned: int = 0

    async def serve(
        self, reader: ScanReader, body: bytes, find: Callable[[str], ScanSource | None]
    ) -> None:
        """Answer one SCAN line. Invalid requests do not raise. Cancellation ends the scan, and so
        does a ConnectionError from `drain`, which means that the reader has disconnected.
        Permission is checked before the stream is looked up, so that a user learns nothing about
        streams that it may not read."""
        admission, account = self.admission, reader.account
        try:
            request = decode_request(body)
            check_subjects(request)
            if not reader.permitted(request.stream):
                self.refused += 1
                return
            source = find(request.stream)
            if source is None:
                raise ScanRefused(ScanCode.NOSTREAM, f"no replica of {request.stream} here")
            if not admission.has_room(account):
                raise ScanRefused(ScanCode.BUSY, f"{admission.open} scans are open")
        except ScanRefused as refusal:
            self.refused += 1
            reader.write(encode_error(refusal))
            return
        admission.enter(account)
        try:
            counted = replace(reader, write=partial(self._write, reader.write))
            pace = _Pace(counted, self.turns, admission, self.memory)
            await serve_scan(pace, source.store, request, stream_id=source.id)
            self.served += 1
        except ConnectionError:
            self.abandoned += 1
        finally:
            admission.leave(account)

    def _write(self, write: Write, data: bytes | memoryview) -> None:
        self.bytes_sent += len(data)
        write(data)


async def serve_scan(
    pace: _Pace, store: ScanStore, request: ScanRequest, *, stream_id: str
) -> None:
    """Send the whole answer to a valid request: head, frames and end, or one error line."""
    write = pace.reader.write
    if request.id and not same_incarnation(request.id, stream_id):
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
        rows = await _send_blocks(pace, store, request)
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
    await pace.reader.drain()


async def _send_blocks(pace: _Pace, store: ScanStore, request: ScanRequest) -> int:
    """Return how many stored rows the range has, on any subject."""
    memory = pace.memory.borrow()
    selection = Selection.of(request.subjects, request.columns)
    picker = RowPicker(store, selection, memory.of_size)
    chunk = min(max(request.max_chunk, CHUNK_BYTES_MIN), CHUNK_BYTES)
    cursor = max(request.first, store.first_seq)
    rows = 0

    def begin() -> _Begun | None:
        """Find the block, and send the first chunk of it in the same turn."""
        found = _next(store, picker, cursor, request.last)
        if found is None:
            return None
        frame = _framed(found.block, memory)
        if frame:
            pace.reader.write(frame[:chunk])
        return _Begun(found.rows, found.last_seq, frame)

    try:
        while cursor <= request.last:
            sent = await _send_block(pace, begin, chunk)
            memory.give_back()
            if sent is None:
                break
            rows += sent.rows
            cursor = sent.last_seq + 1
    finally:
        memory.give_back()
    return rows


class _Begun(NamedTuple):
    rows: int
    last_seq: int
    frame: memoryview


class _Sent(NamedTuple):
    rows: int
    last_seq: int


async def _send_block(pace: _Pace, begin: Callable[[], _Begun | None], chunk: int) -> _Sent | None:
    admission, account = pace.admission, pace.reader.account
    held = BLOCK_BYTES
    await admission.hold(account, held)
    try:
        begun = await pace.turn(begin)
        if begun is None:
            return None
        admission.resize(account, held, len(begun.frame))
        held = len(begun.frame)
        await _send_rest(pace, begun.frame, chunk)
        return _Sent(begun.rows, begun.last_seq)
    finally:
        admission.release(account, held)


def _framed(block: bytes | memoryview, memory: BorrowedMemory) -> memoryview:
    if not block:
        return memoryview(b"")
    header = frame_header(block)
    return memory.framed(header, block) or memoryview(b"".join((header, block)))


async def _send_rest(pace: _Pace, frame: memoryview, chunk: int) -> None:
    """Send what follows the first chunk. A slow reader delays no turn and no other scan."""
    reader = pace.reader
    await reader.drain()
    for at in range(chunk, len(frame), chunk):
        await pace.turn(partial(reader.write, frame[at : at + chunk]))
        await reader.drain()


def _next(store: ScanStore, picker: RowPicker, cursor: int, last: int) -> Found | None:
    """Raises ScanRefused when messages were removed: the reader then requests the rest again and
    decides how to handle the loss. Rows collected before that are sent first."""
    if store.first_seq > cursor:
        if picker.holds_rows:
            return Found(picker.flush(), 0, cursor - 1)
        text = f"messages up to {store.first_seq - 1} were removed during the scan"
        raise ScanRefused(ScanCode.GONE, text, first_seq=store.first_seq)
    return picker.next(cursor, last)


def check_subjects(request: ScanRequest) -> None:
    for pattern in request.subjects:
        if not valid_subject(pattern.encode(), wildcards=True):
            raise ScanRefused(ScanCode.BAD, f"{pattern!r} is not a valid subject")
