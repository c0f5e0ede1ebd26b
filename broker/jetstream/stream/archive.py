"""The archive of a stream: the file that STREAM.SNAPSHOT sends and STREAM.RESTORE reads.

Owns: the layout of an archive, writing it, and reading it in pieces of any size.
May not touch: streams and stores; parts are bytes here.
Spec: NATS JetStream API, STREAM.SNAPSHOT and STREAM.RESTORE; decision 41. An archive is an S2
stream. Its data is an archive in nats-server's format (nats_archive.py), which nats-server can
restore. Chunks of a type that S2 readers skip contain what only this server has: parts, compressed
with zlib.

    part = kind u8, flags u8 (1: compressed, 2: continued in the next chunk), bytes
    HEAD, then data and CONSUMERs, then END with the SHA-256 of everything before it.

An archive of nats-server has no parts; everything is in its records. Archives of earlier versions
have no data: their messages are in parts of kind BLOCK."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from enum import IntEnum
from hashlib import sha256
from typing import Final

import msgspec

from broker.compression import s2
from broker.compression.s2_stream import (
    HEADER_BYTES,
    PACKED,
    PLAIN,
    S2_IDENTIFIER,
    WRITTEN_BYTES_MAX,
    data_chunk,
    masked_checksum,
)
from broker.jetstream.stream import nats_archive
from broker.jetstream.stream.nats_archive import RecordReader
from broker.jetstream.strict_json import SEQUENCE_MAX
from broker.store.block.block_format import TIME_MAX
from broker.store.block.codec import Block
from broker.store.block.columns import unwritable_subject

_SKIPPED: Final = 0x80  # a chunk type that S2 readers skip
_IGNORED: Final = range(0x81, 0xFF)  # padding, an index
_CHUNK_BYTES_MAX: Final = 1 << 20
_PART_BYTES_MAX: Final = 128 << 20  # uncompressed; more than the largest possible message
_COMPRESSED, _CONTINUED = 1, 2
_READ_CHUNK_BYTES_MAX: Final = 5 << 20  # of a chunk of data: 4 MB that did not compress
FORMAT: Final = "jetraft-archive-1"


class Part(IntEnum):
    HEAD = 1
    BLOCK = 2  # messages, with their sequences and times; in archives of earlier versions
    CONSUMER = 3  # the image of one consumer
    END = 4


class BadArchive(Exception):
    """These bytes are not an archive of this server, or are damaged."""


class Head(msgspec.Struct, array_like=True, frozen=True):
    """The state besides messages and consumers. New fields go to the end, with a default."""

    format: str
    stream: str  # "": not known, an archive of nats-server
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

    def begin(self, head: Head, records: bytes) -> bytes:
        """`records`: those before the messages (nats_archive.py)."""
        part = self.part(Part.HEAD, msgspec.msgpack.encode(head))
        return S2_IDENTIFIER + part + self.data(records)

    def part(self, kind: Part, payload: bytes) -> bytes:
        """The chunks of one part. Compresses the payload, so call it in a thread."""
        self._digest.update(bytes((kind,)) + payload)
        return _chunks(kind, payload)

    def messages(self, raw: bytes) -> bytes:
        """The chunks of a block. Compresses it, so call it in a thread."""
        return self.data(nats_archive.encode_block(raw))

    def data(self, records: bytes) -> bytes:
        self._digest.update(records)
        found: list[bytes] = []
        for at in range(0, len(records), WRITTEN_BYTES_MAX):
            plain = records[at : at + WRITTEN_BYTES_MAX]
            found.append(data_chunk(plain))
        return b"".join(found)

    def end(self) -> bytes:
        return self.data(nats_archive.END) + _chunks(Part.END, self._digest.digest())


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
    """Reads bytes in order. `complete` is set once the end was read and, if the archive is one of
    ours, the digest matched. `window_ns`: the duplicate window of the stream."""

    def __init__(self, window_ns: int = 0) -> None:
        self.complete = False
        self._buffer = bytearray()
        self._digest = sha256()
        self._identified = False
        self._pieces: list[bytes] = []
        self._piece_bytes = 0
        self._ours = False  # it has parts
        self._records = RecordReader(window_ns=window_ns)

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
            kind, body = chunk
            if kind == _SKIPPED:
                part = self._part(body)
                if part is not None:
                    self._ours = True
                    yield part
            elif kind in (PACKED, PLAIN):
                yield from self._data(kind, body)

    def _chunk(self) -> tuple[int, bytes] | None:
        if len(self._buffer) < HEADER_BYTES:
            return None
        if self.complete and self._buffer[0] not in _IGNORED:
            raise BadArchive("unexpected bytes after the end")
        kind, size = self._buffer[0], int.from_bytes(self._buffer[1:HEADER_BYTES], "little")
        known = kind in (PACKED, PLAIN) or kind in _IGNORED or kind == S2_IDENTIFIER[0]
        if not known and (kind != _SKIPPED or not 2 <= size <= _CHUNK_BYTES_MAX + 2):
            raise BadArchive("not an archive of this kind of server")
        if size > _READ_CHUNK_BYTES_MAX:
            raise BadArchive("a chunk is too large")
        if len(self._buffer) < HEADER_BYTES + size:
            return None
        chunk = bytes(self._buffer[HEADER_BYTES : HEADER_BYTES + size])
        del self._buffer[: HEADER_BYTES + size]
        return kind, chunk

    def _data(self, kind: int, body: bytes) -> Iterator[tuple[Part, bytes]]:
        try:
            plain = s2.decompress(body[4:]) if kind == PACKED else body[4:]
            if masked_checksum(plain) != int.from_bytes(body[:4], "little"):
                raise BadArchive("the checksum of a chunk does not match")
            self._digest.update(plain)
            for raw in self._records.feed(plain):
                yield Part.BLOCK, raw
        except (s2.BadS2, nats_archive.BadRecord) as error:
            raise BadArchive(str(error)) from error
        if self._records.complete and not self._ours:
            self.complete = True
            yield from self._records_state()

    def _records_state(self) -> Iterator[tuple[Part, bytes]]:
        """The state in the records, as parts."""
        records = self._records
        head = Head(
            format=FORMAT,
            stream="",
            first_seq=records.first_seq,
            last_seq=records.last_seq,
            message_ids=list(records.message_ids),
            last_time=records.last_time,
            sources=records.sources,
        )
        yield Part.HEAD, msgspec.msgpack.encode(head)
        for image in records.images:
            yield Part.CONSUMER, image

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
    # An entry that cannot be applied would stop every replica of the stream.
    seqs = [head.first_seq, head.last_seq, *head.sources.values()]
    seqs += (seq for _, seq, _ in head.message_ids)
    if not all(0 <= seq <= SEQUENCE_MAX for seq in seqs):
        raise BadArchive("its header has an impossible sequence")
    times = (head.last_time, *(time_ns for _, _, time_ns in head.message_ids))
    if not all(abs(time_ns) <= TIME_MAX for time_ns in times):
        raise BadArchive("its header has an impossible time")
    return head


def check_block(raw: bytes) -> None:
    """Check that the block is valid for a stream, and its messages for clients. Raises BadArchive
    and BlockDamaged."""
    block = Block(raw)
    if not block.rows:
        return
    if not 0 < block.first_seq <= block.last_seq <= SEQUENCE_MAX:
        raise BadArchive(f"messages have the sequences {block.first_seq} to {block.last_seq}")
    subject = unwritable_subject(block)
    if subject is not None:
        raise BadArchive(f"a message has the subject {subject[:100]!r}")
