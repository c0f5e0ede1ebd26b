"""Archives: read in pieces of any size, refused if anything in them is wrong."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.compression import s2
from broker.jetstream.stream import nats_archive
from broker.jetstream.stream.archive import (
    FORMAT,
    S2_IDENTIFIER,
    ArchiveReader,
    ArchiveWriter,
    BadArchive,
    Head,
    Part,
    read_head,
)
from broker.jetstream.stream.nats_archive import END, encode_block
from broker.store.block.codec import BlockBuilder

MAGIC = nats_archive.MAGIC
HEAD = Head(FORMAT, "S", 1, 3, b"id", [(b"id", 3, 99)])


def archive(parts: Sequence[tuple[Part, bytes]]) -> bytes:
    writer = ArchiveWriter()
    written = [writer.begin(HEAD, MAGIC), *(writer.part(kind, payload) for kind, payload in parts)]
    return b"".join([*written, writer.end()])


def read(raw: bytes, size: int) -> list[tuple[Part, bytes]]:
    reader = ArchiveReader()
    found = [part for at in range(0, len(raw), size) for part in reader.feed(raw[at : at + size])]
    assert reader.complete
    return found


contents = st.lists(
    st.tuples(st.sampled_from([Part.BLOCK, Part.CONSUMER]), st.binary(max_size=300)), max_size=5
)


@given(contents, st.integers(1, 400))
@settings(max_examples=80, deadline=None)
def test_parts_do_not_depend_on_how_the_bytes_are_split(
    parts: list[tuple[Part, bytes]], size: int
) -> None:
    (first, head), *rest = read(archive(parts), size)
    assert first is Part.HEAD
    assert read_head(head) == HEAD
    assert rest == parts


def test_parts_larger_than_a_chunk_are_reassembled() -> None:
    large = os.urandom(3 << 20)
    assert read(archive([(Part.BLOCK, large)]), 1 << 17)[1] == (Part.BLOCK, large)


def test_s2_readers_see_only_the_records_of_nats_server() -> None:
    raw = archive([(Part.BLOCK, os.urandom(1000)), (Part.CONSUMER, b"")])
    assert raw.startswith(S2_IDENTIFIER)
    at, data = len(S2_IDENTIFIER), b""
    while at < len(raw):
        size = int.from_bytes(raw[at + 1 : at + 4], "little")
        if raw[at] in (0, 1):
            body = raw[at + 8 : at + 4 + size]
            data += body if raw[at] else s2.decompress(body)
        else:
            assert 0x80 <= raw[at] <= 0xFD, "a chunk type that readers skip"
        at += 4 + size
    assert at == len(raw)
    assert data == MAGIC + END


def test_messages_are_records_and_come_back_as_blocks() -> None:
    builder, writer = BlockBuilder(), ArchiveWriter()
    for seq in (3, 5, 6, 2**40):
        headers = b"NATS/1.0\r\nA: b\r\n\r\n" if seq % 2 else b""
        builder.append(b"s.%d" % seq, headers, b"x" * (seq % 300), time_ns=seq - 5, seq=seq)
    raw = builder.build()
    whole = writer.begin(HEAD, MAGIC) + writer.messages(raw) + writer.end()
    for size in (1, 7, len(whole)):
        assert read(whole, size)[1:] == [(Part.BLOCK, raw)]


def test_an_archive_without_parts_is_one_of_nats_server() -> None:
    builder, writer = BlockBuilder(), ArchiveWriter()
    source = b"NATS/1.0\r\nNats-Stream-Source: A 7 > > x\r\nNats-Msg-Id: me\r\n\r\n"
    builder.append(b"x", source, b"", time_ns=9, seq=2)
    writer.begin(HEAD, b"")
    data = writer.data(MAGIC + encode_block(builder.build()) + END)
    reader = ArchiveReader(window_ns=1)
    (block, _), (kind, head) = reader.feed(S2_IDENTIFIER + data)
    assert (block, kind, reader.complete) == (Part.BLOCK, Part.HEAD, True)
    found = read_head(head)
    assert (found.stream, found.last_seq, found.sources) == ("", 2, {"A > >": 7})
    assert found.message_ids == [(b"me", 2, 9)]


def test_every_flipped_bit_and_every_truncation_is_detected() -> None:
    raw = archive([(Part.BLOCK, b"some messages" * 20), (Part.CONSUMER, b"image")])
    intact = read(raw, len(raw))
    for at in range(len(S2_IDENTIFIER), len(raw)):
        damaged = bytearray(raw)
        damaged[at] ^= 1 << (at % 8)
        reader = ArchiveReader()
        try:
            parts = list(reader.feed(bytes(damaged)))
        except BadArchive:
            continue
        # A few bits of a zlib stream have no effect.
        assert not reader.complete or parts == intact, f"bit {at % 8} of byte {at}"
    for end in range(0, len(raw), 7):
        reader = ArchiveReader()
        list(reader.feed(raw[:end]))
        assert not reader.complete


@pytest.mark.parametrize(
    "raw",
    [
        b"not an archive at all",
        S2_IDENTIFIER + b"\x00\x05\x00\x00abcde",  # not compressed by S2
        S2_IDENTIFIER + b"\x01\x05\x00\x00abcde",  # a wrong checksum
        S2_IDENTIFIER + b"\x80\xff\xff\xff\x02\x00",
        S2_IDENTIFIER + b"\x80\x06\x00\x00\x02\x01oops",
        S2_IDENTIFIER + b"\x80\x03\x00\x00\x63\x00x",
    ],
)
def test_bytes_that_are_not_an_archive_are_refused(raw: bytes) -> None:
    with pytest.raises(BadArchive):
        list(ArchiveReader().feed(raw))


def test_a_head_of_another_format_is_refused() -> None:
    with pytest.raises(BadArchive):
        read_head(b"\x90")
