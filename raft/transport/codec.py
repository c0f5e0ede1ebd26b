"""The encoding of Raft messages between nodes: messages of many groups share a frame.

Owns: the layout of a frame's payload on channels 1 and 2.
May not touch: sockets, the core, the store's record layout (raft/store/records.py).
Spec: a frame is a sequence of messages, each a fixed head and then its entries. Little-endian.

    head   group u64, sender u64, to u64, term u64, index u64, log_term u64, commit u64,
           hint_index u64, hint_term u64, context u64, kind u8, reject u8, entry count u32
    entry  term u64, size u32, kind u8, then the data; indices follow `index` without a gap

Data is never copied while encoding: a frame is a list of pieces that the link writes together."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from raft.core.membership import decode_members
from raft.core.messages import Entry, EntryKind, Message, MessageKind
from raft.types import GroupId, Index, RaftError

_HEAD: Final = struct.Struct("<QQQQQQQQQQBBI")
_ENTRY: Final = struct.Struct("<QIB")
FRAME_BYTES_GOAL: Final = 4 << 20  # a frame is closed once it holds this much
ENTRIES_MAX: Final = 1 << 20

# Kinds that must not wait behind bulk data: elections, leases, leadership transfers.
CONTROL_KINDS: Final = frozenset(
    {
        MessageKind.PRE_VOTE,
        MessageKind.PRE_VOTE_REPLY,
        MessageKind.VOTE,
        MessageKind.VOTE_REPLY,
        MessageKind.HEARTBEAT,
        MessageKind.HEARTBEAT_REPLY,
        MessageKind.TIMEOUT_NOW,
    }
)

_MESSAGE_KINDS: Final = {int(kind): kind for kind in MessageKind}
_ENTRY_KINDS: Final = {int(kind): kind for kind in EntryKind}


class CodecError(RaftError):
    """The peer sent bytes that cannot be decoded."""


def encode_frames(messages: Iterable[tuple[GroupId, Message]]) -> list[list[bytes]]:
    """The payloads of as few frames as the size goal allows, each as a list of pieces."""
    frames: list[list[bytes]] = []
    pieces: list[bytes] = []
    size = 0
    for group, m in messages:
        entries = m.entries
        pieces.append(
            _HEAD.pack(
                group,
                m.sender,
                m.to,
                m.term,
                m.index,
                m.log_term,
                m.commit,
                m.hint_index,
                m.hint_term,
                m.context,
                m.kind,
                m.reject,
                len(entries),
            )
        )
        size += _HEAD.size
        for entry in entries:
            data = entry.data
            pieces.append(_ENTRY.pack(entry.term, len(data), entry.kind))
            pieces.append(data)
            size += _ENTRY.size + len(data)
        if size >= FRAME_BYTES_GOAL:
            frames.append(pieces)
            pieces, size = [], 0
    if pieces:
        frames.append(pieces)
    return frames


def decode_frame(payload: bytes | memoryview) -> list[tuple[GroupId, Message]]:
    """All messages of a frame, copied out of it, or CodecError."""
    view = memoryview(payload)
    end = len(view)
    position = 0
    found: list[tuple[GroupId, Message]] = []
    while position < end:
        if end - position < _HEAD.size:
            raise CodecError(f"message head is cut short at byte {position}")
        (
            group,
            sender,
            to,
            term,
            index,
            log_term,
            commit,
            hint_index,
            hint_term,
            context,
            kind_number,
            reject,
            count,
        ) = _HEAD.unpack_from(view, position)
        kind = _MESSAGE_KINDS.get(kind_number)
        if kind is None or reject > 1:
            raise CodecError(f"unknown message kind {kind_number} or flag {reject}")
        entries: list[Entry] = []
        position += _HEAD.size
        if count:
            position = _take_entries(view, position, count, index, entries)
        message = Message(
            kind,
            sender,
            to,
            term,
            index,
            log_term,
            commit,
            reject == 1,
            hint_index,
            hint_term,
            context,
            entries,
        )
        found.append((group, message))
    return found


def _take_entries(
    view: memoryview, position: int, count: int, index: int, entries: list[Entry]
) -> int:
    """Fill `entries`. Returns the position after them."""
    end = len(view)
    if count > ENTRIES_MAX:
        raise CodecError(f"message with {count} entries, the limit is {ENTRIES_MAX}")
    for _ in range(count):
        if end - position < _ENTRY.size:
            raise CodecError(f"entry head is cut short at byte {position}")
        term, size, kind_number = _ENTRY.unpack_from(view, position)
        position += _ENTRY.size
        stop = position + size
        if stop > end:
            raise CodecError(
                f"entry of {size} bytes, but only {end - position} are left in the frame"
            )
        kind = _ENTRY_KINDS.get(kind_number)
        if kind is None:
            raise CodecError(f"unknown entry kind {kind_number}")
        if kind is EntryKind.CONFIG:
            _check_members(bytes(view[position:stop]))
        index += 1
        entries.append(Entry(Index(index), term, bytes(view[position:stop]), kind))
        position = stop
    return position


def _check_members(data: bytes) -> None:
    try:
        decode_members(data)
    except ValueError as error:
        raise CodecError(f"bad configuration entry: {error}") from error
