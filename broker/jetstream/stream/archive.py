"""The archive of a stream: the file that STREAM.SNAPSHOT sends and STREAM.RESTORE reads.

Owns: the layout of an archive, writing it, and reading it in pieces of any size.
May not touch: streams and stores; parts are bytes here.
Spec: NATS JetStream API, STREAM.SNAPSHOT and STREAM.RESTORE. The content is opaque to clients, but
the nats command line tool passes it through an S2 reader to show progress. So an archive is a valid
S2 stream: its identifier, then chunks of a type that readers skip. Parts are compressed with zlib.

    part = kind u8, flags u8 (1: compressed, 2: continued in the next chunk), bytes
    HEAD, then BLOCKs and CONSUMERs, then END with the SHA-256 of everything before it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from enum import IntEnum
from hashlib import sha256
from typing import Final

import msgspec

S2_IDENTIFIER: Final = b"\xff\x06\x00\x00S2sTwO"
_SKIPPED: Final = 0x80  # a chunk type that S2 readers skip
_CHUNK_BYTES_MAX: Final = 1 << 20
_PART_BYTES_MAX: Final = 128 << 20  # uncompressed; more than the largest possible message
_COMPRESSED, _CONTINUED = 1, 2
_HEADER_BYTES: Final = 4  # of a chunk: type, 24 bit length
FORMAT: Final = "jetraft-archive-1"


class Part(IntEnum):
    HEAD = 1
    BLOCK = 2  # messages, with their sequences and times
    CONSUMER = 3  # the image of one consumer
    END = 4


class BadArchive(Exception):
    """These bytes are not an archive of this server, or are damaged."""


class Head(msgspec.Struct, array_like=True, frozen=True):
    """The state besides messages and consumers. New fields go to the end, with a default."""

    format: str
    stream: str
    first_seq: int
    last_seq: int
    last_msg_id: bytes = b""
    message_ids: list[tuple[bytes, int, int]] = []  # (id, sequence, time), duplicate window
    last_time: int = 0  # of the newest message ever stored
    sources: dict[str, int] = {}  # the origin sequence read last, by source


_head = msgspec.msgpack.Decoder(Head)


class ArchiveWriter:
    """Call in this order: begin, part any number of times, end."""

    def __init__(self) -> None:
        self._digest = sha256()

    def begin(self, head: Head) -> bytes:
        return S2_IDENTIFIER + self.part(Part.HEAD, msgspec.msgpack.encode(head))

    def part(self, kind: Part, payload: bytes) -> bytes:
        """The chunks of one part. Compresses the payload, so call it in a thread."""
        self._digest.update(bytes((kind,)) + payload)
        return _chunks(kind, payload)

    def end(self) -> bytes:
        return _chunks(Part.END, self._digest.digest())


def _chunks(kind: Part, payload: bytes) -> bytes:
    packed = zlib.compress(payload, 1)
    compressed = len(packed) < len(payload)
    content = packed if compressed else payload
    found: list[bytes] = []
    for at in range(0, max(len(content), 1), _CHUNK_BYTES_MAX):
        piece = content[at : at + _CHUNK_BYTES_MAX]
        continued = at + _CHUNK_BYTES_MAX < len(content)
        flags = (_COMPRESSED if compressed else 0) | (_CONTINUED if continued else 0)
        length = len(piece) + 2
        found.append(bytes((_SKIPPED,)) + length.to_bytes(3, "little") + bytes((kind, flags)))
        found.append(piece)
    return b"".join(found)


class ArchiveReader:
    """Reads bytes in order. `complete` is set once the end was read and the digest matched."""

    def __init__(self) -> None:
        self.complete = False
        self._buffer = bytearray()
        self._digest = sha256()
        self._identified = False
        self._pieces: list[bytes] = []
        self._piece_bytes = 0

    def feed(self, data: bytes) -> Iterator[tuple[Part, bytes]]:
        """Yields the parts that are complete. Raises BadArchive."""
        self._buffer += data
        if not self._identified:
            if len(self._buffer) < len(S2_IDENTIFIER):
                return
            if not self._buffer.startswith(S2_IDENTIFIER):
                raise BadArchive("not an archive of a stream")
            del self._buffer[: len(S2_IDENTIFIER)]
            self._identified = True
        while (chunk := self._chunk()) is not None:
            part = self._part(chunk)
            if part is not None:
                yield part

    def _chunk(self) -> bytes | None:
        if len(self._buffer) < _HEADER_BYTES:
            return None
        if self.complete:
            raise BadArchive("unexpected bytes after the end")
        size = int.from_bytes(self._buffer[1:_HEADER_BYTES], "little")
        if self._buffer[0] != _SKIPPED or not 2 <= size <= _CHUNK_BYTES_MAX + 2:
            raise BadArchive("not an archive of this kind of server")
        if len(self._buffer) < _HEADER_BYTES + size:
            return None
        chunk = bytes(self._buffer[_HEADER_BYTES : _HEADER_BYTES + size])
        del self._buffer[: _HEADER_BYTES + size]
        return chunk

    def _part(self, chunk: bytes) -> tuple[Part, bytes] | None:
        flags = chunk[1]
        if flags & ~(_COMPRESSED | _CONTINUED):
            raise BadArchive("a part of a newer version")
        self._pieces.append(chunk[2:])
        self._piece_bytes += len(chunk) - 2
        if self._piece_bytes > _PART_BYTES_MAX:
            raise BadArchive("a part is too large")
        if flags & _CONTINUED:
            return None
        content = b"".join(self._pieces)
        self._pieces, self._piece_bytes = [], 0
        payload = _decompressed(content) if flags & _COMPRESSED else content
        try:
            kind = Part(chunk[0])
        except ValueError as error:
            raise BadArchive("a part of a newer version") from error
        if kind is Part.END:
            if payload != self._digest.digest():
                raise BadArchive("the checksum does not match")
            self.complete = True
            return None
        self._digest.update(bytes((kind,)) + payload)
        return kind, payload


def _decompressed(content: bytes) -> bytes:
    unpacking = zlib.decompressobj()
    try:
        payload = unpacking.decompress(content, _PART_BYTES_MAX)
    except zlib.error as error:
        raise BadArchive(f"damaged: {error}") from error
    if not unpacking.eof:
        raise BadArchive("a part is truncated or too large")
    return payload


def read_head(payload: bytes) -> Head:
    """Raises BadArchive."""
    try:
        head = _head.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadArchive("its header cannot be decoded") from error
    if head.format != FORMAT:
        raise BadArchive(f"its format is {head.format}")
    return head
