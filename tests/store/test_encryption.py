"""The key of a directory, sealed values, and temporary files."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.store.encryption.directory_cipher import DirectoryCipher, EncryptedScratch
from broker.store.encryption.key_file import (
    FILE_NAME,
    EncryptionKeys,
    EncryptionRefused,
    open_directory,
)

KEY = bytes(range(32))


@given(st.binary(max_size=200), st.binary(max_size=20), st.sampled_from(["aes", "chachapoly"]))
def test_what_is_sealed_opens_only_at_its_place(data: bytes, place: bytes, name: str) -> None:
    cipher = DirectoryCipher(KEY, name)
    sealed = cipher.seal(data, place)
    assert len(sealed) == len(data) + cipher.overhead
    assert cipher.open(sealed, place) == data
    other = DirectoryCipher(KEY, "aes" if name == "chachapoly" else "chachapoly")
    assert other.open(sealed, place) == data, "the algorithm may change"
    for wrong in (
        lambda: cipher.open(sealed, place + b"x"),
        lambda: cipher.open(sealed[:-1] + bytes([sealed[-1] ^ 1]), place),
        lambda: cipher.open(data, place),
        lambda: DirectoryCipher(KEY[::-1], name).open(sealed, place),
    ):
        assert wrong() is None


def test_no_two_values_have_the_same_nonce() -> None:
    cipher = DirectoryCipher(KEY, "chachapoly")
    assert len({cipher.seal(b"same", b"")[1:13] for _ in range(1000)}) == 1000


def test_a_directory_opens_with_its_key_only(tmp_path: Path) -> None:
    first = open_directory(tmp_path, EncryptionKeys(key="one"), used=False)
    assert first is not None
    sealed = first.seal(b"data", b"place")
    for keys in (EncryptionKeys(key="two"), EncryptionKeys(key="two", previous="three")):
        with pytest.raises(EncryptionRefused, match="was encrypted with"):
            open_directory(tmp_path, keys, used=True)
    with pytest.raises(EncryptionRefused, match="has no key"):
        open_directory(tmp_path, EncryptionKeys(), used=True)
    rotated = open_directory(tmp_path, EncryptionKeys(key="two", previous="one"), used=True)
    assert rotated is not None
    assert rotated.open(sealed, b"place") == b"data"
    with pytest.raises(EncryptionRefused):
        open_directory(tmp_path, EncryptionKeys(key="one"), used=True)
    assert open_directory(tmp_path, EncryptionKeys(key="two"), used=True) is not None


def test_a_damaged_key_file_is_refused(tmp_path: Path) -> None:
    open_directory(tmp_path, EncryptionKeys(key="one"), used=False)
    path = tmp_path / FILE_NAME
    for damaged in (path.read_bytes()[:-9], b"{}", b"\xff"):
        path.write_bytes(damaged)
        with pytest.raises(EncryptionRefused, match="damaged"):
            open_directory(tmp_path, EncryptionKeys(key="one"), used=True)


def test_a_directory_without_a_key_stays_clear(tmp_path: Path) -> None:
    assert open_directory(tmp_path, EncryptionKeys(), used=False) is None
    assert not list(tmp_path.iterdir())
    with pytest.raises(EncryptionRefused, match="not encrypted"):
        open_directory(tmp_path, EncryptionKeys(key="one"), used=True)


@given(st.lists(st.binary(max_size=100), max_size=8), st.data())
def test_a_temporary_file_is_read_anywhere(pieces: list[bytes], draw: st.DataObject) -> None:
    below = io.BytesIO()
    file, whole = EncryptedScratch(below), b"".join(pieces)
    for piece in pieces:
        file.write(piece)
    if len(whole) > 16:
        assert whole not in below.getvalue()
    at = draw.draw(st.integers(0, len(whole)))
    file.seek(at)
    assert file.read(7) + file.read(1000) == whole[at:]
