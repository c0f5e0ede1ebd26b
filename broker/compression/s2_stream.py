"""S2 streams: bytes in, chunks out, and back.

Owns: the framing of a stream: its identifier, the kinds of chunks, their lengths and checksums.
May not touch: sockets; how a block is compressed (s2.py).
Bounds: a chunk has at most BLOCK_BYTES_MAX uncompressed bytes, and `read` returns one chunk: a few
bytes may expand to megabytes, so the caller decides when to read on.
Spec: the Snappy framing format, and S2's larger blocks. A stream of small blocks without S2's
extensions, with the identifier of Snappy, can be read by Snappy readers."""

from __future__ import annotations

from typing import Final

from broker.compression.s2 import BLOCK_BYTES_MAX, BadS2, compress, crc32c, decompress

S2_IDENTIFIER: Final = b"\xff\x06\x00\x00S2sTwO"
SNAPPY_IDENTIFIER: Final = b"\xff\x06\x00\x00sNaPpY"
PACKED, PLAIN = 0x00, 0x01  # chunks of data: masked CRC-32C u32, then the bytes
WRITTEN_BYTES_MAX: Final = 1 << 20  # uncompressed, of one chunk that is written
SNAPPY_BYTES_MAX: Final = 1 << 16  # the same, for readers of Snappy
HEADER_BYTES: Final = 4  # of a chunk: type, 24 bit length
_CHECKSUM_BYTES: Final = 4
_CHUNK_BYTES_MAX: Final = BLOCK_BYTES_MAX + BLOCK_BYTES_MAX // 4
_IDENTIFIER: Final = 0xFF
_SKIPPED: Final = range(0x80, 0xFF)  # padding, an index, chunks of others


def masked_checksum(plain: bytes) -> int:
    """The checksum of a chunk, as the Snappy framing format has it."""
    value = crc32c(plain)
    return (value >> 15 | value << 17) + 0xA282EAD8 & 0xFFFFFFFF


def data_chunk(plain: bytes, *, packed: bool = True) -> bytes:
    """One chunk; uncompressed if not `packed`, or if compression would not make it shorter."""
    body = compress(plain) if packed else plain
    kind = PACKED if len(body) < len(plain) else PLAIN
    if kind == PLAIN:
        body = plain
    head = kind | (len(body) + _CHECKSUM_BYTES) << 8 | masked_checksum(plain) << 32
    return head.to_bytes(8, "little") + body


def snappy(data: bytes) -> bytes:
    """A whole stream, for readers of Snappy or S2."""
    pieces = range(0, len(data), SNAPPY_BYTES_MAX)
    chunks = [data_chunk(data[at : at + SNAPPY_BYTES_MAX]) for at in pieces]
    return SNAPPY_IDENTIFIER + b"".join(chunks)


class S2Writer:
    """The sender of one stream."""

    __slots__ = ("_begun", "packed")

    def __init__(self, *, packed: bool) -> None:
        self.packed = packed  # False: chunks hold the bytes as they are
        self._begun = False

    def write(self, data: bytes) -> bytes:
        """The chunks of this data: the receiver can read all of it."""
        step = WRITTEN_BYTES_MAX
        pieces = [data] if len(data) <= step else _cut(data, step)
        chunks = [data_chunk(piece, packed=self.packed) for piece in pieces]
        if not self._begun:
            self._begun = True
            chunks.insert(0, S2_IDENTIFIER)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _cut(data: bytes, step: int) -> list[bytes]:
    return [data[at : at + step] for at in range(0, len(data), step)]


class S2Reader:
    """The receiver: `feed` what arrives, then `read` while there is `more`."""

    __slots__ = ("_at", "_buffer", "_identified", "_missing", "_parts", "more")

    def __init__(self) -> None:
        self._buffer = b""
        self._at = 0
        self._parts: list[bytes] = []  # fed after the buffer; joined once a chunk is complete
        self._missing = HEADER_BYTES  # bytes until the next chunk, or its header, is there
        self._identified = False
        self.more = False

    def feed(self, data: bytes) -> None:
        self._parts.append(data)
        self._missing -= len(data)
        self.more = self._missing <= 0

    def read(self) -> bytes:
        """The data of the next chunk; b"" when there is no `more`. Raises BadS2."""
        if self._parts and self.more:
            rest = self._buffer[self._at :]
            parts = [rest, *self._parts] if rest else self._parts
            self._buffer = parts[0] if len(parts) == 1 else b"".join(parts)
            self._at, self._parts = 0, []
        while self.more:
            buffer, start = self._buffer, self._at + HEADER_BYTES
            self._missing = start - len(buffer)
            if self._missing <= 0:
                kind, size = buffer[self._at], int.from_bytes(buffer[start - 3 : start], "little")
                self._check(kind, size)
                self._missing += size
                if self._missing <= 0:
                    self._at = start + size
                    plain = self._chunk(kind, start)
                    if plain:
                        return plain
                    continue
            self.more = False
        return b""

    def _check(self, kind: int, size: int) -> None:
        if not self._identified and kind != _IDENTIFIER:
            raise BadS2("a stream without its identifier")
        if PLAIN < kind < _SKIPPED.start:
            raise BadS2(f"an unknown chunk of type {kind}")
        if size > _CHUNK_BYTES_MAX:
            raise BadS2("a chunk that is too large")

    def _chunk(self, kind: int, start: int) -> bytes:
        """The data of the chunk whose body is from `start` to where we are."""
        buffer, end = self._buffer, self._at
        if kind == _IDENTIFIER:
            known = (S2_IDENTIFIER[HEADER_BYTES:], SNAPPY_IDENTIFIER[HEADER_BYTES:])
            if buffer[start:end] not in known:
                raise BadS2("an unknown stream")
            self._identified = True
            return b""
        if kind in _SKIPPED:
            return b""
        first = start + _CHECKSUM_BYTES
        if not 0 <= end - first <= BLOCK_BYTES_MAX:
            raise BadS2("a chunk of a wrong length")
        plain = buffer[first:end]
        if kind == PACKED:
            plain = decompress(plain)
        if int.from_bytes(buffer[start:first], "little") != masked_checksum(plain):
            raise BadS2("a chunk with a wrong checksum")
        return plain
