"""Outgoing snapshots, sent in pieces beside the log traffic.

Owns: the outgoing transfers, their rate, and where each resumes after a lost connection.
May not touch: what is in a chunk, the core, the log.
Spec: raft/snapshot/frames.py. A transfer keeps the unacknowledged pieces, a bounded number of
bytes, and survives its connection: after a new connection or a timeout the receiver is asked for
its position, and the transfer resumes there. A receiver that has dropped the transfer refuses
it, and the leader takes a new snapshot. The log must not starve beside a snapshot: the window of
unacknowledged bytes, which may be queued in front of log traffic, is small, and all transfers of a
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
WINDOW_BYTES: Final = 2 << 20  # unacknowledged, per transfer
ASK_SECONDS: Final = 1.0  # without an answer; then the receiver is asked for its position
STALL_SECONDS: Final = 10.0  # without an answer on an open link; then the transfer is given up
RESUME_SECONDS: Final = 30.0  # without a link; then the transfer is given up
INSTALL_SECONDS: Final = 120.0  # after the last piece, instead of the two above
_BURST_SECONDS: Final = 0.02  # of the rate may be sent at once
_POLL_SECONDS: Final = 0.02

Piece = tuple[FrameKind, bytes]


class TransferBroken(Exception):
    """The transfer ended before the receiver accepted it."""


class SendRate:
    """A limit of bytes per second, shared by all transfers."""

    def __init__(self, bytes_per_second: int) -> None:
        self._seconds_per_byte = 1 / bytes_per_second
        self._paid_until = 0.0

    async def take(self, nbytes: int) -> None:
        now = asyncio.get_running_loop().time()
        self._paid_until = max(self._paid_until, now - _BURST_SECONDS)
        self._paid_until += nbytes * self._seconds_per_byte
        await asyncio.sleep(max(0.0, self._paid_until - now))  # at least one turn of the loop


@dataclass(slots=True)
class _OutTransfer:
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
    known: bool = False  # the receiver has answered: it knows the transfer
    answered: bool = False  # the last question was answered
    link_pair: int = 0  # number of the links of the last question
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
        self.resumed = 0  # transfers that resumed after a lost connection
        self.sent_bytes = 0
        self._transport = transport
        self._rate = SendRate(bytes_per_second)
        self._transfers: dict[tuple[GroupId, int], _OutTransfer] = {}
        self._last_transfer = 0

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
        self._last_transfer += 1
        number = self._last_transfer
        begin = SnapshotFrame(FrameKind.BEGIN, group, number, 0, term, meta.index, meta.term)
        begin.data = b"" if meta.members is None else encode_members(meta.members)
        transfer = _OutTransfer(group, to, number, begin, wanted, _cut(chunks))
        self._transfers[group, number] = transfer
        try:
            while transfer.verdict is None:
                await self._find_position(transfer)
                await self._send_pieces(transfer)
            self._check(transfer)
        except TransferBroken as broken:
            _log.info("snapshot of group %d to node %d was aborted: %s", group, to, broken)
            stop = SnapshotFrame(FrameKind.STOP, group, number)
            self._transport.send(to, SNAPSHOTS, stop.pieces())
            return False
        finally:
            del self._transfers[group, number]
        return True

    def answered(self, node: NodeId, frame: SnapshotFrame) -> None:
        """TAKEN, HELD, DONE or REFUSED from a receiver."""
        transfer = self._transfers.get((frame.group, frame.transfer))
        if transfer is None or transfer.to != node:
            return
        if frame.kind is FrameKind.TAKEN:
            transfer.acknowledge(frame.number)
        elif frame.kind is not FrameKind.HELD:
            transfer.verdict = frame.kind is FrameKind.DONE
        elif frame.asked == transfer.asked:
            transfer.lost = not transfer.taken <= frame.number <= transfer.read_count()
            transfer.acknowledge(frame.number)
            transfer.position = transfer.taken + 1
            transfer.answered = transfer.known = True
            transfer.ended = False
        transfer.heard_at = asyncio.get_running_loop().time()
        transfer.progress.set()

    async def _find_position(self, transfer: _OutTransfer) -> None:
        """Returns when the receiver has answered with its position or its verdict."""
        transfer.heard_at = asyncio.get_running_loop().time()
        transfer.answered = False
        while not transfer.answered and transfer.verdict is None:
            transfer.link_pair = await self._connection(transfer)
            transfer.asked += 1
            question = transfer.begin
            if transfer.known:
                question = SnapshotFrame(FrameKind.WHERE, transfer.group, transfer.number)
            question.asked = transfer.asked
            self._transport.send(transfer.to, SNAPSHOTS, question.pieces())
            # Late answers to earlier questions are no reason to ask again: that would make the
            # answer to this one late, too, and so on.
            while not transfer.answered and transfer.verdict is None:
                if not await self._answer(transfer):
                    break
        self._check(transfer)
        if transfer.taken and transfer.verdict is None and transfer.ended_at is None:
            self.resumed += 1
            _log.info(
                "snapshot of group %d to node %d resumes after piece %d",
                transfer.group,
                transfer.to,
                transfer.taken,
            )

    async def _send_pieces(self, transfer: _OutTransfer) -> None:
        """Send from the position on. Returns when the receiver has answered with its verdict, or
        when it must be asked for its position: on a new connection, or after a timeout."""
        while (
            transfer.verdict is None
            and self._transport.link_pair_number(transfer.to) == transfer.link_pair
        ):
            self._check(transfer)
            frame = self._next(transfer)
            if frame is None:
                if not await self._answer(transfer):
                    return
                continue
            if not self._transport.send(transfer.to, SNAPSHOTS, frame.pieces()):
                await asyncio.sleep(_POLL_SECONDS)  # the link is full, or gone
                self._check_deadline(transfer, STALL_SECONDS, since=transfer.heard_at)
                continue
            if frame.kind is FrameKind.END:
                transfer.ended = True
                transfer.ended_at = transfer.ended_at or asyncio.get_running_loop().time()
            else:
                transfer.position += 1
                self.sent_bytes += len(frame.data)
                await self._rate.take(len(frame.data))

    def _next(self, transfer: _OutTransfer) -> SnapshotFrame | None:
        """The next frame to send; None: wait for the receiver."""
        if transfer.position > transfer.read_count():
            if transfer.kept_bytes >= WINDOW_BYTES:
                return None
            piece = next(transfer.pieces, None)
            if piece is None:
                if transfer.ended:
                    return None
                return SnapshotFrame(
                    FrameKind.END, transfer.group, transfer.number, transfer.read_count()
                )
            transfer.kept.append(piece)
            transfer.kept_bytes += len(piece[1])
        kind, data = transfer.kept[transfer.position - transfer.taken - 1]
        return SnapshotFrame(kind, transfer.group, transfer.number, transfer.position, data=data)

    async def _connection(self, transfer: _OutTransfer) -> int:
        """The number of the links to the receiver; waits until there is one."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not (link_pair := self._transport.link_pair_number(transfer.to)):
            self._check(transfer)
            self._check_deadline(transfer, RESUME_SECONDS, since=began)
            await asyncio.sleep(_POLL_SECONDS)
            transfer.heard_at = loop.time()  # the timeout starts with the new connection
        return link_pair

    async def _answer(self, transfer: _OutTransfer) -> bool:
        """Wait for an answer of the receiver, but not long; whether there was one."""
        self._check(transfer)
        self._check_deadline(transfer, STALL_SECONDS, since=transfer.heard_at)
        try:
            async with asyncio.timeout(ASK_SECONDS):
                await transfer.progress.wait()
        except TimeoutError:
            return False
        finally:
            transfer.progress.clear()
        self._check(transfer)
        return True

    def _check_deadline(self, transfer: _OutTransfer, seconds: float, *, since: float) -> None:
        if transfer.ended_at is not None:  # installing may block the whole receiver
            seconds, since = INSTALL_SECONDS, transfer.ended_at
        if asyncio.get_running_loop().time() > since + seconds:
            raise TransferBroken("the receiver does not answer")

    def _check(self, transfer: _OutTransfer) -> None:
        if transfer.verdict is False:
            raise TransferBroken("the receiver does not want it")
        if transfer.lost:
            raise TransferBroken("the receiver does not have what was sent")
        if transfer.verdict is None and not transfer.wanted():
            raise TransferBroken(
                "outdated: this node no longer leads, has cut its log beyond it or begun another"
            )


def _cut(chunks: Iterable[bytes]) -> Iterator[Piece]:
    """Cut the machine's chunks into pieces of bounded size."""
    for chunk in chunks:
        view = memoryview(chunk)
        start = 0
        while len(view) - start > PIECE_BYTES:
            yield FrameKind.PIECE, bytes(view[start : start + PIECE_BYTES])
            start += PIECE_BYTES
        yield FrameKind.CHUNK, bytes(view[start:])
