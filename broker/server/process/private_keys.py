"""This server's own keys: an ed25519 pair that signs (nkey), and one that encrypts (xkey).

Owns: private keys, and reading seeds.
May not touch: what is signed or encrypted.
Spec: NATS nkeys and xkeys. Encrypted text is `xkv1`, 24 bytes of nonce, and a NaCl box."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from broker.credentials import nkeys
from broker.credentials.nkeys import KEY_BYTES, KeyKind
from broker.credentials.seeds import read_seed

if TYPE_CHECKING:
    from nacl.public import Box

XKEY_VERSION = b"xkv1"
NONCE_BYTES = 24


class BadSeal(Exception):
    """Not encrypted for us, or changed on the way."""


def is_sealed(data: bytes) -> bool:
    return data.startswith(XKEY_VERSION)


class SigningKey:
    """One key pair of some kind."""

    __slots__ = ("_private", "public")

    def __init__(self, kind: KeyKind, private: bytes | None = None) -> None:
        """A new pair, or the one of these 32 bytes."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self._private = Ed25519PrivateKey.from_private_bytes(private or os.urandom(KEY_BYTES))
        self.public = nkeys.encode(kind, self._private.public_key().public_bytes_raw())

    @classmethod
    def from_seed(cls, text: str) -> SigningKey:
        """The pair of a seed such as SUAGC3D... Raises BadSeed."""
        return cls(*read_seed(text))

    def sign(self, data: bytes) -> bytes:
        return self._private.sign(data)


class SealingKey:
    """One key pair for messages that only the two ends can read."""

    __slots__ = ("_private", "public")

    def __init__(self) -> None:
        from nacl.public import PrivateKey

        self._private = PrivateKey.generate()
        self.public = nkeys.encode(KeyKind.CURVE, bytes(self._private.public_key))

    def seal(self, data: bytes, reader: str) -> bytes:
        """`reader` is the public xkey of the other end. Raises BadKey."""
        nonce = os.urandom(NONCE_BYTES)
        return XKEY_VERSION + bytes(self._box(reader).encrypt(data, nonce))

    def open(self, sealed: bytes, writer: str) -> bytes:
        """Raises BadSeal."""
        from nacl.exceptions import CryptoError

        try:
            return bytes(self._box(writer).decrypt(sealed[len(XKEY_VERSION) :]))
        except (CryptoError, ValueError) as error:
            raise BadSeal("unable to decrypt") from error

    def _box(self, other: str) -> Box:
        from nacl.public import Box, PublicKey

        return Box(self._private, PublicKey(nkeys.decode(other)[1]))
