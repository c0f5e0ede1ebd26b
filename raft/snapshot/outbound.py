"""Outgoing snapshots, sent in pieces beside the log traffic.

Owns: the outgoing streams, their rate, and where each resumes after a lost connection.
May not touch: what is in a chunk, the core, the log.
Spec: raft/snapshot/frames.py. A stream keeps the unacknowledged pieces, a bounded number of bytes,
and survives its connection: after a new connection or a timeout the receiver is asked for its
position, and the stream resumes there. A receiver that has dropped the stream refuses it, and
the leader takes a new snapshot. The log must not starve beside a snapshot: the window of
unacknowledged bytes, which may be queued in front of log traffic, is small, and all streams of a
node share one limited rate."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from raft.core.membership import encode_members
from raft.snapshot.frames import FrameKind, SnapshotFrame
from raft.transport.transport import SNAPSHOTS, Transport
from raft.types import GroupId, NodeId, SnapshotMeta, Term

_log = logging.getLogger("raft.snapshot")
PIECE_BYTES: Final = 128 << 10
WINDOW_BYTES: Final = 2 << 20  # unacknowledged, per stream
ASK_SECONDS: Final = 1.0  # without an answer; then the receiver is asked for its position
STALL_SECONDS: Final = 10.0  # without an answer on an open link; then the stream is given up
RESUME_SECONDS: Final = 30.0  # without a link; then the stream is given up
INSTALL_SECONDS: Final = 120.0  # after the last piece, instead of the two above
_BURST_SECONDS: Final = 0.02  # of the rate may be sent at once
_POLL_SECONDS: Final = 0.02

Piece = tuple[FrameKind, bytes]


class StreamBroken(Exception):
    """The stream ended before the receiver accepted it."""


class SendRate:
    """A limit of bytes per second, shared by all streams."""

    def __init__(self, bytes_per_second: int) -> None:
        self._seconds_per_byte = 1 / bytes_per_second
        self._paid_until = 0.0

    async def take(self, nbytes: int) -> None:
        now = asyncio.get_running_loop().time()
        self._paid_until = max(self._paid_until, now - _BURST_SECONDS)
        self._paid_until += nbytes * self._seconds_per_byte
        await asyncio.sleep(max(0.0, self._paid_until - now))  # at least one turn of the loop


@dataclass(slots=True)
class _OutStream:
    group: GroupId
    to: NodeId
    number: int
    begin: SnapshotFrame
    wanted: Callable[[], bool]
    pieces: Iterator[Piece]
    # Pieces from `taken + 1` on that were read from the machine. Invariant: no more bytes than
    # the window and one piece.
    kept: deque[Piece] = field(default_factory=deque)
    kept_bytes: int = 0
    taken: int = 0  # acknowledged
    position: int = 1  # the piece to send next
    ended: bool = False  # END was sent after the last piece
    ended_at: float | None = None  # for the first time
    asked: int = 0
    known: bool = False  # the receiver has answered: it knows the stream
    answered: bool = False  # the last question was answered
    session: int = 0  # the connection of the last question
    heard_at: float = 0.0
    verdict: bool | None = None
    lost: bool = False  # the receiver holds less than it has acknowledged
    progress: asyncio.Event = field(default_factory=asyncio.Event)

    def read_count(self) -> int:
        """Pieces read from the machine so far."""
        return self.taken + len(self.kept)

    def acknowledge(self, upto: int) -> None:
        for _ in range(min(upto, self.read_count()) - self.taken):
            self.kept_bytes -= len(self.kept.popleft()[1])
            self.taken += 1


class SnapshotSender:
    """`send` runs in a task of the host."""

    def __init__(self, transport: Transport, *, bytes_per_second: int) -> None:
        self.resumed = 0  # streams that resumed after a lost connection
        self.sent_bytes = 0
        self._transport = transport
        self._rate = SendRate(bytes_per_second)
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
        """Returns whether the receiver has the snapshot. `wanted` is checked again and again: a
        deposed leader stops. Never raises because of the peer or the network."""
        self._last_stream += 1
        number = self._last_stream
        begin = SnapshotFrame(FrameKind.BEGIN, group, number, 0, term, meta.index, meta.term)
        begin.data = b"" if meta.members is None else encode_members(meta.members)
        stream = _OutStream(group, to, number, begin, wanted, _cut(chunks))
        self._streams[group, number] = stream
        try:
            while stream.verdict is None:
                await self._find_position(stream)
                await self._send_pieces(stream)
            self._check(stream)
        except StreamBroken as broken:
            _log.info("snapshot of group %d to node %d was aborted: %s", group, to, broken)
            stop = SnapshotFrame(FrameKind.STOP, group, number)
            self._transport.send(to, SNAPSHOTS, stop.pieces())
            return False
        finally:
            del self._streams[group, number]
        return True

    def answered(self, node: NodeId, frame: SnapshotFrame) -> None:
        """TAKEN, HELD, DONE or REFUSED from a receiver."""
        stream = self._streams.get((frame.group, frame.stream))
        if stream is None or stream.to != node:
            return
        if frame.kind is FrameKind.TAKEN:
            stream.acknowledge(frame.number)
        elif frame.kind is not FrameKind.HELD:
            stream.verdict = frame.kind is FrameKind.DONE
        elif frame.asked == stream.asked:
            stream.lost = frame.number < stream.taken
            stream.acknowledge(frame.number)
            stream.position = stream.taken + 1
            stream.answered = stream.known = True
            stream.ended = False
        stream.heard_at = asyncio.get_running_loop().time()
        stream.progress.set()

    async def _find_position(self, stream: _OutStream) -> None:
        """Returns when the receiver has answered with its position or its verdict."""
        stream.heard_at = asyncio.get_running_loop().time()
        stream.answered = False
        while not stream.answered and stream.verdict is None:
            stream.session = await self._connection(stream)
            stream.asked += 1
            question = stream.begin
            if stream.known:
                question = SnapshotFrame(FrameKind.WHERE, stream.group, stream.number)
            question.asked = stream.asked
            self._transport.send(stream.to, SNAPSHOTS, question.pieces())
            await self._answer(stream)
        self._check(stream)
        if stream.taken and stream.verdict is None and stream.ended_at is None:
            self.resumed += 1
            _log.info(
                "snapshot of group %d to node %d resumes after piece %d",
                stream.group,
                stream.to,
                stream.taken,
            )

    async def _send_pieces(self, stream: _OutStream) -> None:
        """Send from the position on. Returns when the receiver has answered with its verdict, or
        when it must be asked for its position: on a new connection, or after a timeout."""
        while stream.verdict is None and self._transport.session(stream.to) == stream.session:
            self._check(stream)
            frame = self._next(stream)
            if frame is None:
                if not await self._answer(stream):
                    return
                continue
            if not self._transport.send(stream.to, SNAPSHOTS, frame.pieces()):
                await asyncio.sleep(_POLL_SECONDS)  # the link is full, or gone
                self._check_deadline(stream, STALL_SECONDS, since=stream.heard_at)
                continue
            if frame.kind is FrameKind.END:
                stream.ended = True
                stream.ended_at = stream.ended_at or asyncio.get_running_loop().time()
            else:
                stream.position += 1
                self.sent_bytes += len(frame.data)
                await self._rate.take(len(frame.data))

    def _next(self, stream: _OutStream) -> SnapshotFrame | None:
        """The next frame to send; None: wait for the receiver."""
        if stream.position > stream.read_count():
            if stream.kept_bytes >= WINDOW_BYTES:
                return None
            piece = next(stream.pieces, None)
            if piece is None:
                if stream.ended:
                    return None
                return SnapshotFrame(
                    FrameKind.END, stream.group, stream.number, stream.read_count()
                )
            stream.kept.append(piece)
            stream.kept_bytes += len(piece[1])
        kind, data = stream.kept[stream.position - stream.taken - 1]
        return SnapshotFrame(kind, stream.group, stream.number, stream.position, data=data)

    async def _connection(self, stream: _OutStream) -> int:
        """The session with the receiver; waits until there is one."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not (session := self._transport.session(stream.to)):
            self._check(stream)
            self._check_deadline(stream, RESUME_SECONDS, since=began)
            await asyncio.sleep(_POLL_SECONDS)
            stream.heard_at = loop.time()  # the timeout starts with the new connection
        return session

    async def _answer(self, stream: _OutStream) -> bool:
        """Wait a short time for an answer of the receiver. Returns whether there was one."""
        self._check(stream)
        self._check_deadline(stream, STALL_SECONDS, since=stream.heard_at)
        try:
            async with asyncio.timeout(ASK_SECONDS):
                await stream.progress.wait()
        except TimeoutError:
            return False
        finally:
            stream.progress.clear()
        self._check(stream)
        return True

    def _check_deadline(self, stream: _OutStream, seconds: float, *, since: float) -> None:
        if stream.ended_at is not None:  # installing may block the whole receiver
            seconds, since = INSTALL_SECONDS, stream.ended_at
        if asyncio.get_running_loop().time() > since + seconds:
            raise StreamBroken("the receiver does not answer")

    def _check(self, stream: _OutStream) -> None:
        if stream.verdict is False:
            raise StreamBroken("the receiver does not want it")
        if stream.lost:
            raise StreamBroken("the receiver has lost a part of it")
        if stream.verdict is None and not stream.wanted():
            raise StreamBroken("outdated: this node no longer leads, or has cut its log beyond it")


def _cut(chunks: Iterable[bytes]) -> Iterator[Piece]:
    """Cut the machine's chunks into pieces of bounded size."""
    for chunk in chunks:
        view = memoryview(chunk)
        start = 0
        while len(view) - start > PIECE_BYTES:
            yield FrameKind.PIECE, bytes(view[start : start + PIECE_BYTES])
            start += PIECE_BYTES
        yield FrameKind.CHUNK, bytes(view[start:])
