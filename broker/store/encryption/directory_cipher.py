"""The cipher that every stored value of an encrypted directory goes through.

Owns: the layout of sealed bytes, the keys of the algorithms, wrapping the data key.
May not touch: what the values mean, when they are written; where the data key is kept
(key_file.py).
Spec: docs/decisions/0040-encryption-at-rest.md.

    sealed   algorithm u8, nonce 12 bytes, then ciphertext and tag of 16 bytes (RFC 8439, or
             AES-256-GCM). The place (group and index, or the database key) is authenticated too

Each algorithm uses a key of its own, derived from the data key, so the algorithm may change at any
start."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Final, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

CIPHERS: Final = {"chachapoly": 1, "aes": 2}
_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_NONCE_MASK: Final = (1 << 8 * _NONCE_BYTES) - 1


class TemporaryBytes(Protocol):
    """A temporary file, which does not outlive the process."""

    def seek(self, offset: int, /) -> int: ...
    def read(self, size: int, /) -> bytes: ...
    def write(self, data: bytes, /) -> int: ...
    def close(self) -> None: ...


class DirectoryCipher:
    """The cipher of the log, the state and temporary files. Nonces are counted up from a random
    start, so that they are unique within a process, and almost certainly between processes."""

    overhead: Final = 1 + _NONCE_BYTES + _TAG_BYTES

    def __init__(self, data_key: bytes, cipher: str) -> None:
        chacha = ChaCha20Poly1305(_derived(data_key, b"chachapoly"))
        aes = AESGCM(_derived(data_key, b"aes"))
        self._ciphers: dict[int, ChaCha20Poly1305 | AESGCM] = {1: chacha, 2: aes}
        number = CIPHERS[cipher]
        self._mark = bytes([number])
        self._encrypt = self._ciphers[number].encrypt
        self._nonce = secrets.randbits(8 * _NONCE_BYTES)

    def seal(self, data: bytes, place: bytes) -> bytes:
        self._nonce = (self._nonce + 1) & _NONCE_MASK
        nonce = self._nonce.to_bytes(_NONCE_BYTES, "little")
        return b"%b%b%b" % (self._mark, nonce, self._encrypt(nonce, data, place))

    def open(self, sealed: bytes, place: bytes) -> bytes | None:
        """None if it was not sealed with this key and for this place, or is damaged."""
        cipher = self._ciphers.get(sealed[0]) if len(sealed) >= self.overhead else None
        if cipher is None:
            return None
        start = 1 + _NONCE_BYTES
        try:
            return cipher.decrypt(sealed[1:start], sealed[start:], place)
        except InvalidTag:
            return None

    def scratch(self, file: TemporaryBytes) -> EncryptedScratch:
        return EncryptedScratch(file)


class EncryptedScratch:
    """A temporary file with its own key, which is only in memory. Bytes are XORed with the key
    stream at their offset, so it can be read at any offset; each offset is written once."""

    _BLOCK: Final = 64  # of the key stream

    def __init__(self, file: TemporaryBytes) -> None:
        self._file = file
        self._key, self._nonce = secrets.token_bytes(_KEY_BYTES), secrets.token_bytes(8)
        self._at = 0

    def seek(self, offset: int, /) -> int:
        self._at = offset
        return self._file.seek(offset)

    def read(self, size: int, /) -> bytes:
        data = self._file.read(size)
        return self._crossed(data)

    def write(self, data: bytes, /) -> int:
        return self._file.write(self._crossed(data))

    def close(self) -> None:
        self._file.close()

    def _crossed(self, data: bytes) -> bytes:
        count, before = divmod(self._at, self._BLOCK)
        nonce = count.to_bytes(8, "little") + self._nonce
        stream = Cipher(ChaCha20(self._key, nonce), mode=None).encryptor()
        stream.update(bytes(before))
        self._at += len(data)
        return stream.update(data)


def wrap(data_key: bytes, key: str, salt: bytes, nonce: bytes) -> bytes:
    """The data key, sealed with one that is derived from the configured `key`."""
    return ChaCha20Poly1305(_derived(key.encode(), salt)).encrypt(nonce, data_key, None)


def unwrap(wrapped: bytes, key: str, salt: bytes, nonce: bytes) -> bytes | None:
    """The data key; None if it was wrapped with another key."""
    try:
        return ChaCha20Poly1305(_derived(key.encode(), salt)).decrypt(nonce, wrapped, None)
    except (InvalidTag, ValueError):
        return None


def _derived(key: bytes, purpose: bytes) -> bytes:
    return hmac.new(key, b"jetraft " + purpose, hashlib.sha256).digest()
