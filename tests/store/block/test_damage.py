"""Damaged blocks: both implementations refuse them, and never read past the end."""

import struct
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.store.block import _block, _builder, block_format
from broker.store.block.block_format import CRC_AT, CRC_FROM, BlockDamaged

BLOCKS = {"python": block_format.Block, "cython": _block.Block}


@pytest.fixture(params=BLOCKS)
def open_block(request: pytest.FixtureRequest) -> Any:
    return BLOCKS[request.param]


def sample(*, gaps: bool) -> bytes:
    builder = _builder.BlockBuilder(first_seq=3)
    for i in range(5):
        builder.append(b"s.%d" % i, b"h" * i, b"data" * i, time_ns=i, seq=3 + i * (1 + gaps))
    return builder.build()


def sealed(raw: bytearray) -> bytes:
    """The block with a valid checksum."""
    struct.pack_into("<I", raw, CRC_AT, crc32(memoryview(raw)[CRC_FROM:]))
    return bytes(raw)


def changed(at: int, fmt: str, value: int, *, gaps: bool = False) -> bytes:
    raw = bytearray(sample(gaps=gaps))
    struct.pack_into(fmt, raw, at, value)
    return sealed(raw)


TIMES = 64
SUBJECT_ENDS = TIMES + 5 * 8
LIES = {
    "magic": changed(0, "<I", 0),
    "version": changed(4, "<H", 2),
    "unknown flag": changed(6, "<H", 2),
    "sequence column claimed": changed(6, "<H", 1),
    "sequence column denied": changed(6, "<H", 0, gaps=True),
    "count one more": changed(8, "<I", 6),
    "count one less": changed(8, "<I", 4),
    "count zero": changed(8, "<I", 0),
    "count enormous": changed(8, "<I", 2**32 - 1),
    "first_seq other": changed(16, "<Q", 4),
    "first_seq too large": changed(16, "<Q", 2**64 - 1),
    "subjects_len": changed(24, "<I", 2**31),
    "headers_len": changed(28, "<I", 2**32 - 1),
    "data_len": changed(32, "<I", 0),
    "total_len": changed(36, "<I", 64),
    "last_seq": changed(56, "<Q", 8),
    "ends begin late": changed(SUBJECT_ENDS, "<i", 1),
    "ends fall": changed(SUBJECT_ENDS + 8, "<i", 0),
    "ends negative": changed(SUBJECT_ENDS + 4, "<i", -1),
    "ends beyond": changed(SUBJECT_ENDS + 8, "<i", 2**31 - 1),
    "ends stop early": changed(SUBJECT_ENDS + 20, "<i", 14),
    "sequences repeat": changed(72, "<q", 3, gaps=True),
    "sequences fall": changed(72, "<q", -5, gaps=True),
    "sequence column begins elsewhere": changed(64, "<q", 2, gaps=True),
    "shorter than a header": sample(gaps=False)[:63],
    "cut": sample(gaps=False)[:-1],
    "longer": sample(gaps=False) + b"\0",
    "empty": b"",
}


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("name", LIES)
def test_inconsistent_fields_are_refused_even_with_a_valid_checksum(
    open_block: Any, name: str, verify: bool
) -> None:
    with pytest.raises(BlockDamaged):
        open_block(LIES[name], verify=verify)


def test_every_flipped_bit_under_the_checksum_is_detected(open_block: Any) -> None:
    raw = sample(gaps=True)
    for bit in range(CRC_AT * 8, len(raw) * 8):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << (bit % 8)
        with pytest.raises(BlockDamaged):
            open_block(bytes(flipped))


def test_unsealed_block_is_read_only_without_verification(open_block: Any) -> None:
    builder = _builder.BlockBuilder()
    builder.append(b"a", b"", b"x")
    raw = builder.build(seal=False)
    assert open_block(raw, verify=False).data(0) == b"x"
    with pytest.raises(BlockDamaged, match="checksum"):
        open_block(raw)


def read_all(kind: Any, raw: bytes, *, verify: bool) -> Any:
    """Everything that can be read from a block, or the error."""
    try:
        block = kind(raw, verify=verify)
    except BlockDamaged as damage:
        return damage.reason
    rows = [
        (block.subject(i), block.headers(i), block.data(i), block.time(i), block.seq(i))
        for i in range(block.rows)
    ]
    found = [block.index_of(seq) for seq in range(20)]
    return rows, found, block.subject_summary(), block.any_nats_header(), block.max_row_size


@settings(max_examples=400, deadline=None)
@given(
    gaps=st.booleans(),
    changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3),
    cut=st.integers(0, 40),
    verify=st.booleans(),
    reseal=st.booleans(),
)
def test_readers_agree_on_damaged_bytes(
    *, gaps: bool, changes: list[tuple[int, int]], cut: int, verify: bool, reseal: bool
) -> None:
    raw = bytearray(sample(gaps=gaps))
    for at, value in changes:
        raw[at % len(raw)] = value
    if cut < 3:
        del raw[len(raw) - cut :]
    data = sealed(raw) if reseal else bytes(raw)
    expected = read_all(block_format.Block, data, verify=verify)
    assert read_all(_block.Block, data, verify=verify) == expected


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(noise: bytes) -> None:
    for kind in BLOCKS.values():
        with pytest.raises(BlockDamaged):
            kind(noise)
