"""nkeys as text: round trips, and everything that is not a key."""

from __future__ import annotations

import base64

import nkeys as official
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.credentials.nkeys import (
    BadKey,
    KeyKind,
    crc16,
    decode,
    encode,
    is_public,
    signature,
    verify,
)
from tests.support.keys import Key

LETTERS = {
    KeyKind.OPERATOR: "O",
    KeyKind.SERVER: "N",
    KeyKind.CLUSTER: "C",
    KeyKind.ACCOUNT: "A",
    KeyKind.USER: "U",
    KeyKind.CURVE: "X",
}
KNOWN = "UCK5N7N66OBOINFXAYC2ACJQYFSOD4VYNU6APEJTAVFZB2SVHLKGEW7L"  # created by another program


def test_the_checksum_is_xmodem() -> None:
    assert crc16(b"123456789") == 0x31C3  # the check value of that CRC


@given(st.sampled_from(list(KeyKind)), st.binary(min_size=32, max_size=32))
def test_a_key_is_read_back(kind: KeyKind, key: bytes) -> None:
    text = encode(kind, key)
    assert len(text) == 56
    assert text[0] == LETTERS[kind]
    assert decode(text) == (kind, key)
    assert is_public(text, kind)
    assert not is_public(text, *(other for other in KeyKind if other is not kind))


def test_keys_of_other_programs_are_read() -> None:
    assert decode(KNOWN)[0] is KeyKind.USER
    key = Key(KeyKind.USER)
    assert official.from_seed(key.seed.encode()).public_key.decode() == key.public


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "56 characters"),
        (KNOWN[:-1], "56 characters"),
        (KNOWN + "A", "56 characters"),
        (KNOWN[:-1] + "M", "checksum"),
        (KNOWN[0] + "D" + KNOWN[2:], "checksum"),
        (KNOWN.lower(), "base32"),
        (KNOWN[:-1] + "1", "base32"),
        (KNOWN[:-1] + "é", "base32"),
    ],
)
def test_damaged_keys_are_refused(text: str, why: str) -> None:
    with pytest.raises(BadKey, match=why):
        decode(text)
    assert not is_public(text, *KeyKind)


def test_a_seed_or_an_unknown_kind_is_not_a_public_key() -> None:
    assert not is_public(Key(KeyKind.USER).seed, *KeyKind)
    body = bytes((0xB0,)) + bytes(32)
    text = base64.b32encode(body + crc16(body).to_bytes(2, "little")).decode().rstrip("=")
    with pytest.raises(BadKey, match="no kind"):
        decode(text)


def test_a_signature_is_of_one_key_and_one_text() -> None:
    key, other = Key(KeyKind.USER), Key(KeyKind.USER)
    signed = key.sign(b"nonce")
    assert verify(key.public, b"nonce", signed)
    assert not verify(other.public, b"nonce", signed)
    assert not verify(key.public, b"other", signed)
    assert not verify(key.public, b"nonce", signed[:-1])
    assert not verify(key.public, b"nonce", b"")
    assert not verify("no key", b"nonce", signed)
    assert not verify(key.public, b"nonce", bytes((signed[0] ^ 1,)) + signed[1:])


def test_both_base64_alphabets_are_accepted() -> None:
    raw = bytes(range(190, 254))  # contains the characters in which the two alphabets differ
    assert signature(base64.urlsafe_b64encode(raw).decode().rstrip("=")) == raw
    assert signature(base64.b64encode(raw).decode()) == raw
    for wrong in ("!", "a", "é", "ab=cd"):
        assert signature(wrong) == b""
