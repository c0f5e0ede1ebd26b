"""The S2 codec: both versions decode alike, whatever the bytes are."""

from __future__ import annotations

import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.compression import _s2, s2_py
from broker.compression.s2_py import BLOCK_BYTES_MAX, BadS2

texts = st.one_of(
    st.binary(max_size=400),
    st.lists(st.sampled_from([b"abcd", b"order 17 ", b"x"]), max_size=300).map(b"".join),
)


@given(texts)
@settings(max_examples=150, deadline=None)
def test_what_is_compressed_comes_back(text: bytes) -> None:
    for compress in (_s2.compress, s2_py.compress):
        for decompress in (_s2.decompress, s2_py.decompress):
            assert decompress(compress(text)) == text


def test_repeated_text_becomes_small() -> None:
    assert len(_s2.compress(b"order 17 " * 10_000)) < 10_000


@given(st.binary(max_size=60), texts, st.integers(0, 60))
@settings(max_examples=300, deadline=None)
def test_damaged_bytes_are_refused_alike(noise: bytes, text: bytes, at: int) -> None:
    good = _s2.compress(text)
    for data in (noise, good[:at], good[:at] + noise + good[at:], bytes([len(noise)]) + noise):
        found = []
        for decompress in (_s2.decompress, s2_py.decompress):
            try:
                found.append(decompress(data))
            except BadS2:
                found.append(None)
        assert found[0] == found[1]


def test_repeats_of_s2_are_understood() -> None:
    """Offset 0 of the short copy repeats the last offset; four ways to say a length."""
    head = b"\x0cabcd" + bytes([0b00001]) + b"\x04"  # four bytes, then a copy of four from 4 back
    cases = [
        (b"\x00"[:0], 0),
        (bytes([1 << 2 | 1, 0]), 5),
        (bytes([5 << 2 | 1, 0, 3]), 11),
        (bytes([6 << 2 | 1, 0, 2, 0]), 262),
        (bytes([7 << 2 | 1, 0, 1, 0, 0]), 65541),
    ]
    for more, count in cases:
        size = 8 + count
        length = bytearray()
        while size >= 128:
            length.append(size & 127 | 128)
            size >>= 7
        length.append(size)
        wanted = (b"abcd" * (count // 4 + 3))[: 8 + count]
        for decompress in (_s2.decompress, s2_py.decompress):
            assert decompress(bytes(length) + head + more) == wanted


def test_a_size_that_is_too_large_is_refused() -> None:
    size = BLOCK_BYTES_MAX + 1
    data = bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14 & 127 | 128, size >> 21])
    for decompress in (_s2.decompress, s2_py.decompress):
        with pytest.raises(BadS2):
            decompress(data)


def test_the_checksum_is_that_of_castagnoli() -> None:
    for crc32c in (_s2.crc32c, s2_py.crc32c):
        assert crc32c(b"123456789") == 0xE3069283


@given(st.binary(max_size=100))
def test_all_checksums_agree(data: bytes) -> None:
    assert _s2.crc32c(data) == _s2.crc32c(data, portable=True) == s2_py.crc32c(data)


@pytest.mark.parametrize("work", ["compress", "decompress", "crc32c"])
def test_other_threads_run_meanwhile(work: str) -> None:
    """The interpreter does not switch by itself here: only what lets the lock go ends the loop."""
    data = b"order 17 " * 100_000
    given = _s2.compress(data) if work == "decompress" else data
    ran, begin = threading.Event(), threading.Lock()

    def other() -> None:
        with begin:
            ran.set()

    thread = threading.Thread(target=other)
    before = sys.getswitchinterval()
    begin.acquire()
    thread.start()
    sys.setswitchinterval(3600)
    try:
        begin.release()
        rounds = 0
        while not ran.is_set() and rounds < 2000:
            getattr(_s2, work)(given)
            rounds += 1
        assert ran.is_set()
    finally:
        sys.setswitchinterval(before)
        thread.join()
