"""Seeds of key pairs, and signing with them.

Owns: the text of a seed.
May not touch: files, random numbers; keys that are made here (broker/server/process).
Spec: NATS nkeys."""

from __future__ import annotations

import base64
import binascii

from broker.credentials import nkeys
from broker.credentials.nkeys import KEY_BYTES, KeyKind, crc16

SEED_PREFIX = 0x90  # S


class BadSeed(Exception):
    """Not the seed of a key pair; str() says why."""


def read_seed(text: str) -> tuple[KeyKind, bytes]:
    """The kind and the 32 bytes of a seed such as SUAGC3D... Raises BadSeed."""
    try:
        raw = base64.b32decode(text + "=" * (-len(text) % 8))
    except (binascii.Error, ValueError) as error:
        raise BadSeed("a seed is written in base32") from error
    body, checksum = raw[:-2], raw[-2:]
    if len(body) != KEY_BYTES + 2 or crc16(body).to_bytes(2, "little") != checksum:
        raise BadSeed("not a seed, or a damaged one")
    if body[0] & 0xF8 != SEED_PREFIX:
        raise BadSeed("not a seed")
    try:
        kind = KeyKind((body[0] & 7) << 5 | body[1] >> 3)
    except ValueError as error:
        raise BadSeed("no kind of seed begins like this") from error
    return kind, body[2:]


def signed(seed: str, data: bytes) -> tuple[str, str]:
    """The public key of the seed, and its signature of the data for CONNECT. Raises BadSeed."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    kind, private = read_seed(seed)
    key = Ed25519PrivateKey.from_private_bytes(private)
    signature = base64.urlsafe_b64encode(key.sign(data)).decode().rstrip("=")
    return nkeys.encode(kind, key.public_key().public_bytes_raw()), signature
