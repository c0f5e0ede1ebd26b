"""Incoming snapshots, spooled to a file until they are complete.

Owns: the incoming transfers, and the answers to their senders.
May not touch: the core (raft/host/snapshots.py steps it), the log, what is in a chunk.
Spec: raft/snapshot/frames.py. One transfer per group: a later one replaces an earlier one. It
survives the loss of its connection for a while, and is used only when it is complete."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from typing import Final, overload

from raft.snapshot.frames import FrameKind, SnapshotFrame, members_of
from raft.store.cipher import ScratchFile, StoreCipher
from raft.transport.transport import SNAPSHOTS, Transport
from raft.types import GroupId, NodeId, SnapshotMeta, Term

_log = logging.getLogger("raft.snapshot")
SPOOL_MEMORY_BYTES: Final = 4 << 20  # a larger snapshot goes to a file
# Without a frame; then the transfer is dropped. Senders give up earlier.
IDLE_SWEEPS_MAX: Final = 60


class SpooledChunks(Sequence[bytes]):
    """Received chunks: a few in memory, more of them in an unnamed file."""

    def __init__(self, directory: str, cipher: StoreCipher | None = None) -> None:
        file = SpooledTemporaryFile(max_size=SPOOL_MEMORY_BYTES, dir=directory)  # noqa: SIM115
        self._file: ScratchFile = file if cipher is None else cipher.scratch(file)
        self._ends = [0]
        self.nbytes = 0

    def append(self, piece: bytes, *, last: bool) -> None:
        """Add a piece. `last`: it is the last of its chunk. Raises OSError."""
        self._file.seek(self.nbytes)
        self._file.write(piece)
        self.nbytes += len(piece)
        if last:
            self._ends.append(self.nbytes)

    def close(self) -> None:
        self._file.close()

    @property
    def complete(self) -> bool:
        """Whether the last chunk is complete."""
        return self.nbytes == self._ends[-1]

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
class Incoming:
    """An incoming transfer."""

    sender: NodeId
    transfer: int
    term: Term
    meta: SnapshotMeta
    chunks: SpooledChunks
    pieces: int = 0
    asked: int = 0  # the sender's last question
    gap_reported: bool = False  # the missing piece was reported to the sender
    offered: bool = False  # complete, and handed to the caller
    verdict: FrameKind | None = None  # kept in case the answer is lost
    idle_sweeps: int = 0

    def is_of(self, node: NodeId, frame: SnapshotFrame) -> bool:
        """A sender that restarts counts its transfers from one again. It leads a later term then,
        and what we have of its former transfer is part of another snapshot."""
        if (self.sender, self.transfer) != (node, frame.transfer):
            return False
        if frame.kind is not FrameKind.BEGIN:
            return True
        begun = (frame.term, frame.index, frame.log_term)
        return begun == (self.term, self.meta.index, self.meta.term)


class SnapshotReceiver:
    def __init__(
        self, transport: Transport, *, directory: str, cipher: StoreCipher | None = None
    ) -> None:
        self._transport = transport
        self._directory = directory
        self._cipher = cipher
        self._transfers: dict[GroupId, Incoming] = {}

    def received(self, node: NodeId, frame: SnapshotFrame) -> Incoming | None:
        """A frame of a sender. Returns the transfer once, when it is complete; the caller calls
        `finish`. Raises CodecError."""
        incoming = self._transfers.get(frame.group)
        if incoming is not None and not incoming.is_of(node, frame):
            incoming = None
        if incoming is None:
            if frame.kind is FrameKind.BEGIN:
                self._begin(node, frame)
            elif frame.kind is not FrameKind.STOP:
                self.refuse(node, frame)
            return None
        incoming.idle_sweeps = 0
        match frame.kind:
            case FrameKind.BEGIN | FrameKind.WHERE:
                incoming.asked = frame.asked
                self._send_position(frame.group, incoming)
            case FrameKind.CHUNK | FrameKind.PIECE:
                self._take(incoming, frame)
            case FrameKind.END if not incoming.offered:
                return self._end(incoming, frame)
            case FrameKind.STOP if not incoming.offered:
                self.drop(frame.group)
            case _:
                pass  # a repeated END or STOP
        return None

    def _begin(self, node: NodeId, frame: SnapshotFrame) -> None:
        former = self._transfers.get(frame.group)
        if former is not None and former.term > frame.term:
            self.refuse(node, frame)  # from a former leader
            return
        meta = SnapshotMeta(frame.index, frame.log_term, members_of(frame))
        self.drop(frame.group)
        chunks = SpooledChunks(self._directory, self._cipher)
        incoming = Incoming(node, frame.transfer, frame.term, meta, chunks, asked=frame.asked)
        self._transfers[frame.group] = incoming
        self._send_position(frame.group, incoming)

    def _take(self, incoming: Incoming, frame: SnapshotFrame) -> None:
        if incoming.offered or frame.number <= incoming.pieces:
            return  # sent again because an acknowledgment was lost
        if frame.number > incoming.pieces + 1:
            if not incoming.gap_reported:
                incoming.gap_reported = True
                self._send_position(frame.group, incoming)
            return
        try:
            incoming.chunks.append(frame.data, last=frame.kind is FrameKind.CHUNK)
        except OSError as error:
            _log.error("snapshot of group %d cannot be stored: %s", frame.group, error)
            self.drop(frame.group)
            self.refuse(incoming.sender, frame)
            return
        incoming.gap_reported = False
        incoming.pieces += 1
        self._answer(incoming, FrameKind.TAKEN, frame.group, incoming.pieces)

    def _end(self, incoming: Incoming, frame: SnapshotFrame) -> Incoming | None:
        if frame.number != incoming.pieces:
            self._send_position(frame.group, incoming)
            return None
        if not incoming.chunks.complete:
            self.drop(frame.group)
            self.refuse(incoming.sender, frame)
            return None
        incoming.offered = True
        return incoming

    def finish(self, group: GroupId, incoming: Incoming, *, ok: bool) -> None:
        """Answer a complete transfer and free its chunks."""
        incoming.chunks.close()
        incoming.verdict = FrameKind.DONE if ok else FrameKind.REFUSED
        self._answer(incoming, incoming.verdict, group)

    def refuse(self, node: NodeId, frame: SnapshotFrame) -> None:
        """Answer that the transfer is not wanted."""
        answer = SnapshotFrame(FrameKind.REFUSED, frame.group, frame.transfer)
        self._transport.send(node, SNAPSHOTS, answer.pieces())

    def drop(self, group: GroupId) -> None:
        """Forget the transfer. One that was handed to the caller is closed by the caller."""
        incoming = self._transfers.pop(group, None)
        if incoming is not None and not incoming.offered:
            incoming.chunks.close()

    def sweep(self) -> None:
        """Drop transfers whose sender is silent; called about once a second."""
        for group, incoming in list(self._transfers.items()):
            incoming.idle_sweeps += 1
            if incoming.idle_sweeps > IDLE_SWEEPS_MAX and (
                incoming.verdict is not None or not incoming.offered
            ):
                self.drop(group)

    def drop_all(self) -> None:
        for group in list(self._transfers):
            self.drop(group)

    def _send_position(self, group: GroupId, incoming: Incoming) -> None:
        if incoming.verdict is not None:
            self._answer(incoming, incoming.verdict, group)
        else:
            self._answer(incoming, FrameKind.HELD, group, incoming.pieces)

    def _answer(self, incoming: Incoming, kind: FrameKind, group: GroupId, number: int = 0) -> None:
        """If the answer is lost, the sender asks again."""
        frame = SnapshotFrame(kind, group, incoming.transfer, number, asked=incoming.asked)
        self._transport.send(incoming.sender, SNAPSHOTS, frame.pieces())
