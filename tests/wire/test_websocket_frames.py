"""WebSocket frames: any chunking, fragments, control frames, compression, and what is refused."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.wire import _encode, encode_py
from broker.wire.websocket import (
    FRAME_MAX,
    INFLATED_MULTIPLE,
    PIECE_SIZE,
    CloseStatus,
    Deflater,
    FrameReader,
    FrameViolation,
    FrameWriter,
    close_frame,
)

KEY = b"\x01\x82\x03\xf4"


def frame(payload: bytes, *, first: int = 0x82, key: bytes = KEY) -> bytes:
    """A frame as a client sends it; independent of the code under test."""
    size = len(payload)
    if size < 126:
        head = bytes((first, 0x80 | size))
    elif size < 65536:
        head = bytes((first, 0x80 | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((first, 0x80 | 127)) + size.to_bytes(8, "big")
    return head + key + bytes(byte ^ key[at % 4] for at, byte in enumerate(payload))


def packed(payload: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return (stream.compress(payload) + stream.flush(zlib.Z_SYNC_FLUSH))[:-4]


def reader(
    *, compression: bool = False, masked: bool = True, max_payload: int = 1024
) -> FrameReader:
    return FrameReader(max_payload=max_payload, masked=masked, compression=compression)


def drain(found: FrameReader, data: bytes, step: int = 0) -> bytes:
    got = b""
    for at in range(0, len(data), step or len(data)):
        found.feed(data[at : at + (step or len(data))])
        while found.more:
            got += found.read()
    return got


@given(data=st.binary(max_size=200), key=st.binary(min_size=4, max_size=4))
def test_both_masks_do_the_same(data: bytes, key: bytes) -> None:
    expected = bytes(byte ^ key[at % 4] for at, byte in enumerate(data))
    assert encode_py.unmask(data, key) == expected
    assert _encode.unmask(data, key) == expected


def test_a_mask_has_four_bytes() -> None:
    for codec in (encode_py, _encode):
        with pytest.raises(ValueError, match="4 bytes"):
            codec.unmask(b"abc", b"12345")


MESSAGES = st.lists(
    st.tuples(st.binary(max_size=300), st.booleans(), st.integers(1, 4), st.booleans()), max_size=6
)


@settings(deadline=None)
@given(messages=MESSAGES, step=st.integers(1, 64), key=st.binary(min_size=4, max_size=4))
def test_any_fragments_in_any_chunks(
    messages: list[tuple[bytes, bool, int, bool]], step: int, key: bytes
) -> None:
    """Compressed or not, split into fragments with pings between them, cut anywhere."""
    wire = expected = b""
    for body, compress, parts, text in messages:
        expected += body
        payload = packed(body) if compress else body
        size = len(payload) // parts + 1
        pieces = [payload[at : at + size] for at in range(0, len(payload), size)] or [b""]
        for at, piece in enumerate(pieces):
            first = (0x40 if compress else 0) | (1 if text else 2) if at == 0 else 0
            first |= 0x80 if at == len(pieces) - 1 else 0
            wire += frame(piece, first=first, key=key) + frame(b"hm", first=0x89, key=key)
    found = reader(compression=True)
    assert drain(found, wire, step) == expected
    assert found.pong == (b"\x8a\x02hm" if messages else None)
    assert found.closing is None


def test_frames_of_one_chunk_come_out_as_one_piece() -> None:
    found = reader()
    found.feed(frame(b"PING\r\n") * 100)
    assert found.read() == b"PING\r\n" * 100
    assert found.read() == b""


def test_a_huge_frame_is_passed_on_as_it_arrives() -> None:
    found = reader()
    found.feed(b"\x82\xff" + (1 << 62).to_bytes(8, "big") + b"\0\0\0\0" + b"x" * 1000)
    assert found.read() == b"x" * 1000
    found.feed(b"y" * 1000)
    assert found.read() == b"y" * 1000


def test_unmasked_frames_are_accepted_where_negotiated() -> None:
    found = reader(masked=False)
    assert drain(found, b"\x82\x05hello") == b"hello"
    with pytest.raises(FrameViolation, match="declined"):
        drain(found, frame(b"x"))


@pytest.mark.parametrize(
    ("wire", "text"),
    [
        (b"\x82\x05hello", "mask bit missing"),
        (frame(b"", first=0xA2), "RSV2"),
        (frame(b"", first=0x92), "RSV2"),
        (frame(packed(b"x"), first=0xC2), "without negotiated"),
        (frame(b"a", first=0x02) + frame(b"b"), "before the previous"),
        (frame(b"b", first=0x80), "invalid continuation"),
        (frame(b"", first=0x83), "unknown opcode 3"),
        (frame(b"", first=0x8B), "unknown opcode 11"),
        (frame(b"", first=0x09), "final bit"),
        (frame(b"x" * 126, first=0x89), "longer than 125"),
        (b"\x82\xff" + b"\xff" * 8 + KEY, "64-bit"),
        (frame(b"x", first=0x88), "1 byte"),
        (frame((1005).to_bytes(2, "big"), first=0x88), "status code 1005"),
        (frame((999).to_bytes(2, "big"), first=0x88), "status code 999"),
        (frame((2999).to_bytes(2, "big"), first=0x88), "status code 2999"),
    ],
)
def test_framing_violations_are_refused(wire: bytes, text: str) -> None:
    found = reader()
    with pytest.raises(FrameViolation, match=text) as violation:
        drain(found, wire)
    assert violation.value.status == CloseStatus.PROTOCOL_ERROR


def test_compressed_continuations_and_controls_are_refused() -> None:
    with pytest.raises(FrameViolation, match="continuation"):
        drain(reader(compression=True), frame(b"", first=0x42) + frame(b"", first=0xC0))
    with pytest.raises(FrameViolation, match="must not be compressed"):
        drain(reader(compression=True), frame(b"", first=0xC9))


def test_payload_before_a_violation_is_returned() -> None:
    found = reader()
    found.feed(frame(b"PUB a 1\r\n") + frame(b"x\r\n") + b"\x82\x05hello")
    assert found.read() == b"PUB a 1\r\nx\r\n"
    with pytest.raises(FrameViolation):
        found.read()


@pytest.mark.parametrize(
    ("payload", "answer"),
    [
        (b"", b"\x88\x00"),
        (b"\x03\xe8bye", b"\x88\x05\x03\xe8bye"),
        (b"\x0f\xa0", b"\x88\x02\x0f\xa0"),
        (b"\x03\xe8\xff", close_frame(1007, "invalid utf8 body in close frame")),
    ],
)
def test_a_close_frame_is_answered_and_ends_reading(payload: bytes, answer: bytes) -> None:
    found = reader()
    found.feed(frame(b"before") + frame(payload, first=0x88) + frame(b"after"))
    assert found.read() == b"before"
    assert found.read() == b""
    assert found.closing == answer


def test_close_frames_stay_short() -> None:
    told = close_frame(1002, "é" * 100)
    assert told[:4] == b"\x88" + bytes((2 + 122,)) + b"\x03\xea"
    assert told[4:].decode() == "é" * 61


def test_a_flood_of_empty_frames_is_read_in_parts() -> None:
    found = reader(compression=True)
    found.feed((frame(b"", first=0x89) + frame(b"", first=0xC2) + frame(b"")) * 1000)
    reads = 0
    while found.more:
        assert found.read() == b""
        reads += 1
    assert reads >= 20
    assert found.pong is not None
    found.feed(frame(b"PING\r\n"))
    assert found.more
    assert found.read() == b"PING\r\n"


def test_a_decompression_bomb_is_refused() -> None:
    limit = 100_000 * INFLATED_MULTIPLE
    found = reader(compression=True, max_payload=100_000)
    found.feed(frame(packed(b"\0" * (limit * 20)), first=0xC2))
    got = 0

    def read_all() -> None:
        nonlocal got
        while found.more:
            part = found.read()
            assert len(part) <= 2 * PIECE_SIZE
            got += len(part)

    with pytest.raises(FrameViolation, match="too big") as violation:
        read_all()
    assert violation.value.status == CloseStatus.TOO_BIG
    assert got <= limit


def test_the_inflate_limit_is_per_message() -> None:
    found = reader(compression=True, max_payload=100_000)
    body = bytes(100_000) * (INFLATED_MULTIPLE - 1)
    wire = frame(packed(body), first=0xC2)
    assert drain(found, wire * 2) == body * 2


@pytest.mark.parametrize("alone", [True, False])
def test_the_end_of_a_long_match_is_not_lost(alone: bool) -> None:
    """A piece may end inside a match whose input has been consumed completely."""
    for beyond in range(1, 300):
        body = bytes(PIECE_SIZE + beyond)
        if alone:
            wire = frame(packed(body), first=0xC2)
        else:
            wire = frame(packed(body), first=0x42) + frame(b"", first=0x80)
        assert drain(reader(compression=True, max_payload=PIECE_SIZE), wire) == body


def test_broken_compression_is_refused_as_invalid_data() -> None:
    with pytest.raises(FrameViolation, match="compressed data") as violation:
        drain(reader(compression=True), frame(b"\xff\xff\xff\xff", first=0xC2))
    assert violation.value.status == CloseStatus.INVALID_DATA


# -- outgoing frames ---------------------------------------------------------------------------


def unframed(wire: bytes) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    at = 0
    while at < len(wire):
        first, size = wire[at], wire[at + 1]
        at += 2
        wide = {126: 2, 127: 8}.get(size, 0)
        if wide:
            size = int.from_bytes(wire[at : at + wide], "big")
            at += wide
        found.append((first, wire[at : at + size]))
        at += size
    return found


@pytest.mark.parametrize("size", [1, 125, 126, 65535, FRAME_MAX, FRAME_MAX + 1, 3 * FRAME_MAX])
def test_output_is_binary_messages_of_bounded_size(size: int) -> None:
    data = (b"0123456789" * (size // 10 + 1))[:size]
    found = unframed(FrameWriter().write(data))
    assert {first for first, _ in found} == {0x82}
    assert b"".join(body for _, body in found) == data
    assert max(len(body) for _, body in found) <= FRAME_MAX


def test_every_message_inflates_alone_though_the_compressor_is_shared() -> None:
    writer = FrameWriter(deflater=Deflater())
    other = b"MSG secret 1 1\r\n" * 30
    for data in (other, b"PING\r\n", b"a" * 64, b"a" * 65, other, other + b"+OK\r\n"):
        ((first, body),) = unframed(writer.write(data))
        if first == 0xC2:
            assert len(body) < len(data)
            body = zlib.decompressobj(-15).decompress(body + b"\0\0\xff\xff")
        assert body == data
        assert (first == 0xC2) == (len(data) > 64)
