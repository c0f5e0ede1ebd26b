"""The frames of a snapshot transfer between two nodes.

Owns: the layout of channel 3.
May not touch: sockets, the transfers themselves (raft/snapshot/outbound.py and inbound.py), what is
in a chunk.
Spec: Raft section 7 and figure 13; the frames are our own. The chunks of a machine are cut into
pieces of bounded size, numbered from 1. The sender begins, and asks for the receiver's position
whenever it cannot know it (after a new connection, after a timeout). The receiver answers with the
number of pieces it holds, also without being asked when a piece is missing. The transfer resumes
there.

    frame  kind u8, group u64, transfer u64, number u64, term u64, index u64, log_term u64,
           asked u64, data

The data of BEGIN are the members at the snapshot (raft/core/membership.py). In BEGIN, WHERE and
HELD `asked` counts the questions: an answer to an earlier question is ignored."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from raft.core.membership import decode_members
from raft.transport.codec import CodecError
from raft.types import GroupId, Index, Members, Term

_HEAD: Final = struct.Struct("<BQQQQQQQ")
_NO_TERM: Final = Term(0)
_NO_INDEX: Final = Index(0)


class FrameKind(IntEnum):
    BEGIN = 1  # sender: a new transfer, or one without any acknowledgment yet
    CHUNK = 2  # sender: the last piece of one of the machine's chunks
    END = 3  # sender: all pieces were sent; number is their count
    TAKEN = 4  # receiver: pieces up to number have arrived
    DONE = 5  # receiver: installed, or no longer needed
    STOP = 6  # sender: the transfer is canceled
    REFUSED = 7  # receiver: does not want the transfer
    PIECE = 8  # sender: a piece that is not the last of its chunk
    WHERE = 9  # sender: asks for the receiver's position
    HELD = 10  # receiver: its position; resume after piece number


@dataclass(slots=True)
class SnapshotFrame:
    kind: FrameKind
    group: GroupId
    transfer: int
    number: int = 0
    term: Term = _NO_TERM
    index: Index = _NO_INDEX
    log_term: Term = _NO_TERM
    asked: int = 0
    data: bytes = b""

    def pieces(self) -> list[bytes]:
        head = _HEAD.pack(
            self.kind,
            self.group,
            self.transfer,
            self.number,
            self.term,
            self.index,
            self.log_term,
            self.asked,
        )
        return [head, self.data] if self.data else [head]


def read_frame(view: memoryview) -> SnapshotFrame:
    """Raises CodecError."""
    if len(view) < _HEAD.size:
        raise CodecError(f"snapshot frame of only {len(view)} bytes")
    kind, group, transfer, number, term, index, log_term, asked = _HEAD.unpack_from(view)
    try:
        known = FrameKind(kind)
    except ValueError:
        raise CodecError(f"unknown kind {kind} of snapshot frame") from None
    data = bytes(view[_HEAD.size :])
    return SnapshotFrame(
        known,
        GroupId(group),
        transfer,
        number,
        Term(term),
        Index(index),
        Term(log_term),
        asked,
        data,
    )


def members_of(frame: SnapshotFrame) -> Members | None:
    """Raises CodecError."""
    if not frame.data:
        return None
    try:
        return decode_members(frame.data)
    except ValueError as error:
        raise CodecError(f"bad members in a snapshot of group {frame.group}: {error}") from error
