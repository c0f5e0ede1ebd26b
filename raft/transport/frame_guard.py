"""Protects a frame in transit: by a checksum, or by a tag that only the two nodes can make.

Owns: the head of a frame, the checksum.
May not touch: sockets; which guard a link uses (raft/transport/handshake.py decides).
Spec: little-endian. Both heads begin with u32 length (of the payload) and u32 its complement.

    checksum    then u32 CRC-32 of the payload, seeded with length and channel, and u8 channel
    tag         then 16 bytes tag and u8 channel

The checksum is made here, the tag in raft/transport/frame_tags.py."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, Protocol

from isal.isal_zlib import crc32

U32: Final = 0xFFFFFFFF
KEY_BYTES: Final = 32


class FrameError(Exception):
    """The peer sent an invalid frame, or the frame was damaged in transit."""


class FrameHead(NamedTuple):
    length: int  # of the payload
    channel: int
    expected: bytes  # checksum or tag


class FrameCheck(Protocol):
    """Checks a large frame while it arrives, so that there is no long pause at the end."""

    def update(self, part: memoryview, /) -> None: ...

    def matches(self) -> bool: ...


class FrameGuard(Protocol):
    """One direction of a link; frames pass in order."""

    @property
    def head_bytes(self) -> int: ...

    def seal(self, channel: int, piece: bytes, more: tuple[bytes, ...], /) -> bytes:
        """The head of the next frame that is sent; the payload is `piece` followed by `more`."""

    def read_head(self, buffer: bytearray, start: int, /) -> FrameHead:
        """Raises FrameError when the length is damaged."""

    def check(self, head: FrameHead, payload: memoryview, /) -> bool:
        """Whether the next received frame is intact: what the peer has sent."""

    def begin(self, head: FrameHead, /) -> FrameCheck:
        """The same, for a frame that arrives in parts."""


class Checksums:
    """Protects against damage, not against an attacker."""

    _HEAD: Final = struct.Struct("<IIIB")
    head_bytes: Final = _HEAD.size

    def seal(self, channel: int, piece: bytes, more: tuple[bytes, ...] = ()) -> bytes:
        size = len(piece) + sum(map(len, more))
        crc = crc32(piece, size ^ channel << 24)
        for another in more:
            crc = crc32(another, crc)
        return self._HEAD.pack(size, size ^ U32, crc, channel)

    def read_head(self, buffer: bytearray, start: int) -> FrameHead:
        length, complement, crc, channel = self._HEAD.unpack_from(buffer, start)
        check_length(length, complement)
        return FrameHead(length, channel, crc.to_bytes(4, "little"))

    def check(self, head: FrameHead, payload: memoryview) -> bool:
        crc = crc32(payload, head.length ^ head.channel << 24)
        return crc == int.from_bytes(head.expected, "little")

    def begin(self, head: FrameHead) -> FrameCheck:
        return _ChecksumInParts(head)


class _ChecksumInParts:
    def __init__(self, head: FrameHead) -> None:
        self._expected = int.from_bytes(head.expected, "little")
        self._crc = head.length ^ head.channel << 24

    def update(self, part: memoryview) -> None:
        self._crc = crc32(part, self._crc)

    def matches(self) -> bool:
        return self._crc == self._expected


def check_length(length: int, complement: int) -> None:
    if length ^ complement != U32:
        raise FrameError("frame with a wrong length field")
