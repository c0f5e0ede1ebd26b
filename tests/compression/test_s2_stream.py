"""S2 streams: any split of the bytes gives the same data, and nothing damaged is taken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.compression import s2_stream
from broker.compression.s2 import BLOCK_BYTES_MAX, BadS2
from broker.compression.s2_stream import S2Reader, S2Writer, data_chunk, snappy

TEXTS = [b"", b"PING\r\n", b"order 17 " * 5000, bytes(range(256)) * 3]


def read_all(reader: S2Reader, chunk: bytes) -> bytes:
    reader.feed(chunk)
    found = []
    while reader.more:
        found.append(reader.read())
    return b"".join(found)


@given(st.lists(st.binary(max_size=300), max_size=8), st.booleans(), st.integers(1, 40))
def test_any_split_gives_what_was_written(texts: list[bytes], packed: bool, step: int) -> None:
    writer, reader = S2Writer(packed=packed), S2Reader()
    sent = b"".join(writer.write(text) for text in texts)
    pieces = [sent[at : at + step] for at in range(0, len(sent), step)]
    assert b"".join(read_all(reader, piece) for piece in pieces) == b"".join(texts)


def test_the_identifier_is_sent_once_and_each_write_can_be_read_at_once() -> None:
    writer, reader = S2Writer(packed=True), S2Reader()
    for at, text in enumerate(TEXTS):
        sent = writer.write(text)
        assert sent.startswith(s2_stream.S2_IDENTIFIER) == (at == 0)
        assert read_all(reader, sent) == text


def test_long_data_is_cut_into_chunks() -> None:
    data = bytes(1 << 20) * 9
    writer, reader = S2Writer(packed=False), S2Reader()
    reader.feed(writer.write(data))
    sizes = []
    while reader.more:
        sizes.append(len(reader.read()))
    assert sizes == [1 << 20] * 9 + [0]


def test_packed_chunks_are_smaller_and_plain_ones_are_not() -> None:
    text = TEXTS[2]
    assert len(data_chunk(text)) < len(text) / 5
    assert len(data_chunk(text, packed=False)) == len(text) + 8


def test_a_stream_for_readers_of_snappy() -> None:
    data = TEXTS[2] * 10
    sent = snappy(data)
    assert sent.startswith(s2_stream.SNAPPY_IDENTIFIER)
    assert read_all(S2Reader(), sent) == data


def test_skippable_chunks_are_skipped() -> None:
    sent = s2_stream.S2_IDENTIFIER + b"\x99\x02\x00\x00ab\xfe\x01\x00\x00x" + data_chunk(b"data")
    assert read_all(S2Reader(), sent) == b"data"


def damaged() -> list[bytes]:
    good = s2_stream.S2_IDENTIFIER + data_chunk(b"order 17 " * 100)
    flipped = bytearray(good)
    flipped[-3] ^= 1
    size = BLOCK_BYTES_MAX * 2
    return [
        data_chunk(b"no identifier"),
        b"\xff\x06\x00\x00sNaPpX",
        bytes(flipped),
        s2_stream.S2_IDENTIFIER + b"\x02\x01\x00\x00a",
        s2_stream.S2_IDENTIFIER + b"\x01\x02\x00\x00ab",
        s2_stream.S2_IDENTIFIER + b"\x01" + size.to_bytes(3, "little"),
        b"INFO {}\r\n",
    ]


@pytest.mark.parametrize("sent", damaged())
def test_what_is_no_stream_is_refused(sent: bytes) -> None:
    with pytest.raises(BadS2):
        read_all(S2Reader(), sent)


def test_few_bytes_that_stand_for_many_are_read_one_chunk_at_a_time() -> None:
    data = bytes(1 << 20)
    sent = S2Writer(packed=True).write(data * 4)
    reader = S2Reader()
    reader.feed(sent)
    assert len(sent) < 1 << 18
    assert len(reader.read()) == 1 << 20
    assert reader.more


def test_a_long_chunk_in_small_pieces_is_joined_once() -> None:
    """The bytes of a chunk are not copied for each piece that arrives."""
    sent = S2Writer(packed=False).write(bytes(1 << 20))
    reader, joined = S2Reader(), 0
    for at in range(0, len(sent), 4096):
        reader.feed(sent[at : at + 4096])
        while reader.more:
            joined += 1
            reader.read()
    assert joined <= 4
