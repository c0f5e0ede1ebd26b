"""S2 compression: blocks, and the checksum of a chunk.

Owns: the block format and CRC-32C, without state.
May not touch: chunks of a stream and what they hold (s2_stream.py).
Spec: the Snappy format description, and its extension S2: a copy with offset 0 repeats the last
offset. What is written here uses no extension. This twin is the specification of _s2.pyx; its
compressor only copies, which is valid."""

from __future__ import annotations

from typing import Final

BLOCK_BYTES_MAX: Final = 4 << 20  # uncompressed, of one chunk
_POLYNOMIAL: Final = 0x82F63B78
_LITERAL_MAX: Final = 1 << 16


class BadS2(ValueError):
    """These bytes are not an S2 block."""


def _table() -> list[int]:
    found = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)  # noqa: PLW2901
        found.append(value)
    return found


_CRC: Final = _table()


def crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for one in data:
        value = _CRC[(value ^ one) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


def compress(data: bytes) -> bytes:
    size, head = len(data), bytearray()
    while size >= 128:
        head.append(size & 127 | 128)
        size >>= 7
    head.append(size)
    parts = [bytes(head)]
    for at in range(0, len(data), _LITERAL_MAX):
        piece = data[at : at + _LITERAL_MAX]
        parts.append(b"\xf4" + (len(piece) - 1).to_bytes(2, "little") + piece)
    return b"".join(parts)


def decompress(data: bytes) -> bytes:
    """Raises BadS2."""
    try:
        return _decompress(data)
    except IndexError:
        raise BadS2("cut short") from None


def _decompress(data: bytes) -> bytes:
    wanted, at = _size(data)
    out, offset = bytearray(), 0
    while at < len(data):
        tag = data[at]
        if tag & 3 == 0:
            start, at = _literal(data, at)
            out += data[start:at]
        else:
            length, offset, at = _copy(data, at, offset)
            if not 0 < offset <= len(out):
                raise BadS2("a copy from before the start")
            if len(out) + length > wanted:
                raise BadS2("longer than it says")
            start = len(out) - offset
            for i in range(length):
                out.append(out[start + i])
        if len(out) > wanted:
            raise BadS2("longer than it says")
    if len(out) != wanted:
        raise BadS2("shorter than it says")
    return bytes(out)


def _size(data: bytes) -> tuple[int, int]:
    size = shift = at = 0
    while True:
        one = data[at]
        size, shift, at = size | (one & 127) << shift, shift + 7, at + 1
        if size > BLOCK_BYTES_MAX or shift > 35:
            raise BadS2("a block that is too large")
        if one < 128:
            return size, at


def _literal(data: bytes, at: int) -> tuple[int, int]:
    """Where its bytes begin and end."""
    length, at = data[at] >> 2, at + 1
    if length >= 60:
        extra = length - 59
        if at + extra > len(data):
            raise BadS2("cut short")
        length = int.from_bytes(data[at : at + extra], "little")
        at += extra
    if at + length + 1 > len(data):
        raise BadS2("cut short")
    return at, at + length + 1


def _copy(data: bytes, at: int, last: int) -> tuple[int, int, int]:
    """Length, offset, and where the next element begins."""
    tag = data[at]
    kind = tag & 3
    if kind == 2:
        return 1 + (tag >> 2), data[at + 1] | data[at + 2] << 8, at + 3
    if kind == 3:
        offset = data[at + 1] | data[at + 2] << 8 | data[at + 3] << 16 | data[at + 4] << 24
        return 1 + (tag >> 2), offset, at + 5
    length, offset = tag >> 2 & 7, (tag & 0xE0) << 3 | data[at + 1]
    at += 2
    if offset:
        return length + 4, offset, at
    if length < 5:
        return length + 4, last, at
    if length == 5:
        return data[at] + 8, last, at + 1
    if length == 6:
        return (data[at] | data[at + 1] << 8) + (1 << 8) + 4, last, at + 2
    more = data[at] | data[at + 1] << 8 | data[at + 2] << 16
    return more + (1 << 16) + 4, last, at + 3
