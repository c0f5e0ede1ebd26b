"""Snapshots on their way between two nodes, in chunks, beside the log traffic.

Owns: the frames of channel 3, the streams that go out, the streams that come in.
May not touch: what is in a chunk, the core (the host steps it), the log.
Spec: Raft section 7 and figure 13, with our own stream: begin, chunks, end; the receiver
acknowledges every chunk, and the sender keeps a bounded number of bytes unacknowledged, so that a
slow receiver holds the sender back and neither holds a snapshot in memory. A stream that breaks
is begun anew when the leader finds the follower behind again. A receiver believes a stream only
as a whole, and the core decides whether it is still wanted.

    frame  kind u8, group u64, stream u64, number u64, term u64, index u64, log_term u64, data

The data of BEGIN are the members at the snapshot (raft.confchange)."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from tempfile import SpooledTemporaryFile
from typing import Final, overload

from raft.codec import CodecError
from raft.confchange import decode_members, encode_members
from raft.transport import SNAPSHOTS, Transport
from raft.types import GroupId, Index, Members, NodeId, SnapshotMeta, Term

_log = logging.getLogger("raft.snapshot")
_HEAD: Final = struct.Struct("<BQQQQQQ")
_NO_TERM: Final = Term(0)
_NO_INDEX: Final = Index(0)
WINDOW_BYTES: Final = 8 << 20  # unacknowledged; one chunk may always go
SPOOL_MEMORY_BYTES: Final = 4 << 20  # a larger snapshot goes to a file
STALL_SECONDS: Final = 10.0  # without any acknowledgement the stream is given up
IDLE_SWEEPS_MAX: Final = 30  # without a frame an incoming stream is forgotten
INSTALL_SECONDS: Final = 120.0  # from the last chunk to the receiver's verdict


class FrameKind(IntEnum):
    BEGIN = 1
    CHUNK = 2  # number counts from 1
    END = 3  # number is the count of chunks
    TAKEN = 4  # receiver: chunks up to number are here
    DONE = 5  # receiver: installed, or not needed any more
    STOP = 6  # sender: there will be no more
    REFUSED = 7  # receiver: send no more


@dataclass(slots=True)
class SnapshotFrame:
    kind: FrameKind
    group: GroupId
    stream: int
    number: int = 0
    term: Term = _NO_TERM
    index: Index = _NO_INDEX
    log_term: Term = _NO_TERM
    data: bytes = b""

    def pieces(self) -> list[bytes]:
        head = _HEAD.pack(
            self.kind, self.group, self.stream, self.number, self.term, self.index, self.log_term
        )
        return [head, self.data] if self.data else [head]


def read_frame(view: memoryview) -> SnapshotFrame:
    """Raises CodecError."""
    if len(view) < _HEAD.size:
        raise CodecError(f"a snapshot frame of {len(view)} bytes")
    kind, group, stream, number, term, index, log_term = _HEAD.unpack_from(view)
    try:
        known = FrameKind(kind)
    except ValueError:
        raise CodecError(f"unknown snapshot frame {kind}") from None
    data = bytes(view[_HEAD.size :])
    return SnapshotFrame(
        known, GroupId(group), stream, number, Term(term), Index(index), Term(log_term), data
    )


def _members(frame: SnapshotFrame) -> Members | None:
    """Raises CodecError."""
    if not frame.data:
        return None
    try:
        return decode_members(frame.data)
    except ValueError as error:
        raise CodecError(f"a snapshot of group {frame.group}: {error}") from error


class SpooledChunks(Sequence[bytes]):
    """Received chunks: small ones in memory, more of them in an unnamed file."""

    def __init__(self, directory: str) -> None:
        self._file = SpooledTemporaryFile(max_size=SPOOL_MEMORY_BYTES, dir=directory)  # noqa: SIM115
        self._ends = [0]

    def append(self, chunk: bytes) -> None:
        self._file.seek(self._ends[-1])
        self._file.write(chunk)
        self._ends.append(self._ends[-1] + len(chunk))

    def close(self) -> None:
        self._file.close()

    @property
    def nbytes(self) -> int:
        return self._ends[-1]

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, position: int) -> bytes: ...

    @overload
    def __getitem__(self, position: slice) -> list[bytes]: ...

    def __getitem__(self, position: int | slice) -> bytes | list[bytes]:
        if isinstance(position, slice):
            return [self[i] for i in range(*position.indices(len(self)))]
        if position < 0:
            position += len(self)
        if not 0 <= position < len(self):
            raise IndexError(position)
        start, stop = self._ends[position : position + 2]
        self._file.seek(start)
        return self._file.read(stop - start)

    def __iter__(self) -> Iterator[bytes]:
        return (self[position] for position in range(len(self)))


@dataclass(slots=True)
class _OutStream:
    to: NodeId
    sizes: list[int] = field(default_factory=list)  # of all chunks sent
    taken: int = 0
    unacknowledged_bytes: int = 0
    verdict: bool | None = None
    moved: asyncio.Event = field(default_factory=asyncio.Event)


class StreamBroken(Exception):
    """The stream ended before the receiver's verdict."""


class SnapshotSender:
    """Streams out. `send` runs in a task of the host."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._streams: dict[tuple[GroupId, int], _OutStream] = {}
        self._last_stream = 0

    async def send(
        self,
        *,
        group: GroupId,
        to: NodeId,
        term: Term,
        meta: SnapshotMeta,
        chunks: Iterable[bytes],
        wanted: Callable[[], bool],
    ) -> bool:
        """Whether the receiver has the snapshot. `wanted` is asked on the way: a deposed leader
        stops. Never raises for what the peer or the network does."""
        self._last_stream += 1
        number = self._last_stream
        stream = self._streams[group, number] = _OutStream(to)
        begin = SnapshotFrame(FrameKind.BEGIN, group, number, 0, term, meta.index, meta.term)
        begin.data = b"" if meta.members is None else encode_members(meta.members)
        try:
            await self._put(stream, begin, wanted)
            for count, chunk in enumerate(chunks, start=1):
                while (
                    stream.unacknowledged_bytes
                    and stream.unacknowledged_bytes + len(chunk) > WINDOW_BYTES
                ):
                    await self._progress(stream, STALL_SECONDS, wanted)
                stream.sizes.append(len(chunk))
                stream.unacknowledged_bytes += len(chunk)
                frame = SnapshotFrame(FrameKind.CHUNK, group, number, count, data=chunk)
                await self._put(stream, frame, wanted)
            end = SnapshotFrame(FrameKind.END, group, number, len(stream.sizes))
            await self._put(stream, end, wanted)
            while stream.verdict is None:
                await self._progress(stream, INSTALL_SECONDS, wanted)
        except StreamBroken as broken:
            _log.info("snapshot of group %d to %d broke off: %s", group, to, broken)
            stop = SnapshotFrame(FrameKind.STOP, group, number)
            self._transport.send(to, SNAPSHOTS, stop.pieces())
            return False
        finally:
            del self._streams[group, number]
        return stream.verdict

    def answered(self, node: NodeId, frame: SnapshotFrame) -> None:
        """TAKEN, DONE or REFUSED of a receiver."""
        stream = self._streams.get((frame.group, frame.stream))
        if stream is None or stream.to != node:
            return
        if frame.kind is FrameKind.TAKEN:
            upto = min(frame.number, len(stream.sizes))
            stream.unacknowledged_bytes -= sum(stream.sizes[stream.taken : upto])
            stream.taken = max(stream.taken, upto)
        else:
            stream.verdict = frame.kind is FrameKind.DONE
        stream.moved.set()

    async def _put(
        self, stream: _OutStream, frame: SnapshotFrame, wanted: Callable[[], bool]
    ) -> None:
        """Queue a frame on the bulk link, waiting while its queue is full."""
        deadline = asyncio.get_running_loop().time() + STALL_SECONDS
        while True:
            self._check(stream, wanted)
            if self._transport.send(stream.to, SNAPSHOTS, frame.pieces()):
                break
            if asyncio.get_running_loop().time() > deadline:
                raise StreamBroken("the link stays full")
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)  # the next chunk is made in another turn of the loop

    async def _progress(
        self, stream: _OutStream, seconds: float, wanted: Callable[[], bool]
    ) -> None:
        """Wait for word of the receiver; look in between whether it makes sense to wait."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not stream.moved.is_set():
            self._check(stream, wanted)
            if loop.time() > deadline:
                raise StreamBroken("the receiver does not answer")
            try:
                async with asyncio.timeout(0.25):
                    await stream.moved.wait()
            except TimeoutError:
                continue
        stream.moved.clear()
        self._check(stream, wanted)

    def _check(self, stream: _OutStream, wanted: Callable[[], bool]) -> None:
        if stream.verdict is False:
            raise StreamBroken("the receiver does not want it")
        if not self._transport.connected(stream.to):
            raise StreamBroken("the connection is lost")
        if not wanted():
            raise StreamBroken("we lead the group no longer")


@dataclass(slots=True)
class Incoming:
    """A stream coming in."""

    sender: NodeId
    stream: int
    term: Term
    meta: SnapshotMeta
    chunks: SpooledChunks
    idle_sweeps: int = 0


class SnapshotReceiver:
    """Streams in, at most one per group: a later one takes the place of an earlier one."""

    def __init__(self, transport: Transport, *, directory: str) -> None:
        self._transport = transport
        self._directory = directory
        self._streams: dict[GroupId, Incoming] = {}

    def received(self, node: NodeId, frame: SnapshotFrame) -> Incoming | None:
        """BEGIN, CHUNK, END or STOP of a sender. The stream, when it is complete: it then
        belongs to the caller, who answers by `finish`."""
        if frame.kind is FrameKind.BEGIN:
            self.drop(frame.group)
            meta = SnapshotMeta(frame.index, frame.log_term, _members(frame))
            self._streams[frame.group] = Incoming(
                node, frame.stream, frame.term, meta, SpooledChunks(self._directory)
            )
            return None
        incoming = self._streams.get(frame.group)
        if incoming is None or (incoming.sender, incoming.stream) != (node, frame.stream):
            if frame.kind is not FrameKind.STOP:
                self.refuse(node, frame)
            return None
        incoming.idle_sweeps = 0
        in_order = frame.number == len(incoming.chunks) + (frame.kind is FrameKind.CHUNK)
        if frame.kind is FrameKind.STOP or not in_order:
            self.drop(frame.group)
            self.refuse(node, frame)
            return None
        if frame.kind is FrameKind.CHUNK:
            incoming.chunks.append(frame.data)
            self._answer(node, FrameKind.TAKEN, frame.group, frame.stream, frame.number)
            return None
        return self._streams.pop(frame.group)

    def finish(self, group: GroupId, incoming: Incoming, *, ok: bool) -> None:
        """The verdict on a complete stream; its chunks are let go."""
        incoming.chunks.close()
        kind = FrameKind.DONE if ok else FrameKind.REFUSED
        self._answer(incoming.sender, kind, group, incoming.stream)

    def refuse(self, node: NodeId, frame: SnapshotFrame) -> None:
        """This stream is not wanted here."""
        self._answer(node, FrameKind.REFUSED, frame.group, frame.stream)

    def drop(self, group: GroupId) -> None:
        incoming = self._streams.pop(group, None)
        if incoming is not None:
            incoming.chunks.close()

    def sweep(self) -> None:
        """Drop streams whose sender has fallen silent; called about once a second."""
        for group, incoming in list(self._streams.items()):
            incoming.idle_sweeps += 1
            if incoming.idle_sweeps > IDLE_SWEEPS_MAX:
                self.drop(group)

    def drop_all(self) -> None:
        for group in list(self._streams):
            self.drop(group)

    def _answer(
        self, to: NodeId, kind: FrameKind, group: GroupId, stream: int, number: int = 0
    ) -> None:
        frame = SnapshotFrame(kind, group, stream, number)
        self._transport.send(to, SNAPSHOTS, frame.pieces())
