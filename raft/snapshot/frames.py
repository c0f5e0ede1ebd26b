"""The frames of a snapshot on its way between two nodes.

Owns: the layout of channel 3.
May not touch: sockets, streams (raft.snapshot_out, raft.snapshot_in), what is in a chunk.
Spec: Raft section 7 and figure 13, with our own stream. What a machine gives is cut into pieces of
bounded size, numbered from 1. The sender begins, and asks again where the receiver stands whenever
it cannot know (after a new connection, after silence); the receiver answers what it holds, and says
so unasked when a piece is missing; the stream goes on from there.

    frame  kind u8, group u64, stream u64, number u64, term u64, index u64, log_term u64,
           asked u64, data

The data of BEGIN are the members at the snapshot (raft.confchange). In BEGIN, WHERE and HELD
`asked` counts the questions: an answer to an earlier one is not heeded."""

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
    BEGIN = 1  # sender: a new stream, or one of which nothing was acknowledged yet
    CHUNK = 2  # the last piece of one of the machine's chunks
    END = 3  # number is the count of pieces
    TAKEN = 4  # receiver: pieces up to number are here
    DONE = 5  # receiver: installed, or not needed any more
    STOP = 6  # sender: there will be no more
    REFUSED = 7  # receiver: send no more
    PIECE = 8  # a piece that is not the last of its chunk
    WHERE = 9  # sender: how much do you hold?
    HELD = 10  # receiver: pieces up to number are here, go on after them


@dataclass(slots=True)
class SnapshotFrame:
    kind: FrameKind
    group: GroupId
    stream: int
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
            self.stream,
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
        raise CodecError(f"a snapshot frame of {len(view)} bytes")
    kind, group, stream, number, term, index, log_term, asked = _HEAD.unpack_from(view)
    try:
        known = FrameKind(kind)
    except ValueError:
        raise CodecError(f"unknown snapshot frame {kind}") from None
    data = bytes(view[_HEAD.size :])
    return SnapshotFrame(
        known, GroupId(group), stream, number, Term(term), Index(index), Term(log_term), asked, data
    )


def members_of(frame: SnapshotFrame) -> Members | None:
    """Raises CodecError."""
    if not frame.data:
        return None
    try:
        return decode_members(frame.data)
    except ValueError as error:
        raise CodecError(f"a snapshot of group {frame.group}: {error}") from error
