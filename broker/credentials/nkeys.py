"""nkeys: ed25519 public keys as text, and signature verification.

Owns: the text form (prefix byte, 32 bytes, checksum, in base32) and both encodings of a signature.
May not touch: private keys; nothing here signs.
Spec: NATS nkeys; CRC-16/XMODEM, little endian, no padding, 56 characters."""

from __future__ import annotations

import base64
import binascii
from enum import IntEnum

KEY_BYTES = 32
TEXT_CHARS = 56
SIGNATURE_BYTES = 64


class KeyKind(IntEnum):
    """What a key is for: the prefix byte, which determines the first letter of the text."""

    OPERATOR = 0x70  # O
    SERVER = 0x68  # N
    CLUSTER = 0x10  # C
    ACCOUNT = 0x00  # A
    USER = 0xA0  # U
    CURVE = 0xB8  # X, for encryption


class BadKey(Exception):
    """Not a public key; str() says why."""


def crc16(data: bytes) -> int:
    """CRC-16 with the polynomial 0x1021, from 0."""
    return binascii.crc_hqx(data, 0)


def encode(kind: KeyKind, key: bytes) -> str:
    assert len(key) == KEY_BYTES
    body = bytes((kind,)) + key
    return base64.b32encode(body + crc16(body).to_bytes(2, "little")).decode().rstrip("=")


def decode(text: str) -> tuple[KeyKind, bytes]:
    """The kind and the 32 bytes of a public key. Raises BadKey."""
    if len(text) != TEXT_CHARS:
        raise BadKey(f"a public key has {TEXT_CHARS} characters")
    try:
        raw = base64.b32decode(text)
    except (binascii.Error, ValueError) as error:
        raise BadKey("a public key is written in base32") from error
    body, checksum = raw[:-2], raw[-2:]
    if crc16(body).to_bytes(2, "little") != checksum:
        raise BadKey("the checksum does not fit")
    try:
        return KeyKind(body[0]), body[1:]
    except ValueError as error:
        raise BadKey("no kind of public key begins like this") from error


def is_public(text: str, *kinds: KeyKind) -> bool:
    """Is it the text of a public key of one of these kinds?"""
    try:
        return decode(text)[0] in kinds
    except BadKey:
        return False


def signature(text: str) -> bytes:
    """The signature of a CONNECT: base64 of either alphabet, padded or not. Empty if malformed."""
    padding = "=" * (-len(text) % 4)
    try:
        return base64.b64decode(text + padding, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return b""


def verify(text: str, data: bytes, signed: bytes) -> bool:
    """Is this the signature of the data by this public key? Takes about 0.1 ms."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if len(signed) != SIGNATURE_BYTES:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(decode(text)[1]).verify(signed, data)
    except (BadKey, InvalidSignature, ValueError):
        return False
    return True
