"""Encryption at rest: the key of a data directory, and the cipher that every value goes through.

Owns: the file `encryption.json` of a directory, and the layout of sealed bytes.
May not touch: what the values mean, when they are written.
Spec: docs/decisions/0040-encryption-at-rest.md; NATS, jetstream { cipher, key,
prev_encryption_key }.

    sealed   algorithm u8, nonce 12 bytes, then ciphertext and tag of 16 bytes (RFC 8439, or
             AES-256-GCM). The place (group and index, or the database key) is authenticated too
    file     JSON: version, salt, nonce, wrapped: the data key, sealed with a key that
             HMAC-SHA256 derives from the configured one and the salt

The data key of a directory never changes: a new configured key wraps it again. Each algorithm uses
a key of its own, derived from the data key, so the algorithm may change at any start."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

FILE_NAME: Final = "encryption.json"
CIPHERS: Final = {"chachapoly": 1, "aes": 2}
_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_NONCE_MASK: Final = (1 << 8 * _NONCE_BYTES) - 1
_VERSION: Final = 1


class EncryptionRefused(Exception):
    """The directory cannot be used with this configuration; the text is for the operator."""


@dataclass(frozen=True, slots=True)
class EncryptionKeys:
    """As configured. An empty key: no encryption."""

    cipher: str = "chachapoly"
    key: str = ""
    previous: str = ""


class TemporaryBytes(Protocol):
    """A file that ends with the process."""

    def seek(self, offset: int, /) -> int: ...
    def read(self, size: int, /) -> bytes: ...
    def write(self, data: bytes, /) -> int: ...
    def close(self) -> None: ...


class _KeyFile(msgspec.Struct):
    version: int
    salt: bytes
    nonce: bytes
    wrapped: bytes


class DirectoryCipher:
    """The cipher of the log, the state and temporary files. Nonces are counted from a random start,
    so that no two values of a process have the same one, and those of two processes almost
    certainly have not."""

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
    """A temporary file with a key of its own, which is only in memory. Bytes are XORed with the
    key stream of their place, so it is read anywhere; every place is written once."""

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


def open_directory(directory: Path, keys: EncryptionKeys, *, used: bool) -> DirectoryCipher | None:
    """The cipher of the directory; None if it is not encrypted. `used`: it holds data already.
    Blocking. Raises EncryptionRefused, OSError."""
    path = directory / FILE_NAME
    if not path.exists():
        return _begin(directory, keys, used=used)
    if not keys.key:
        raise EncryptionRefused(
            f"{directory} is encrypted, and the configuration has no key: set jetstream {{ key }}"
        )
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_KeyFile)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EncryptionRefused(f"{path} is damaged ({error}): restore it from a copy") from error
    if found.version != _VERSION:
        raise EncryptionRefused(f"{path} has version {found.version}, which is not known here")
    data_key = _unwrapped(found, keys.key)
    if data_key is None and keys.previous:
        data_key = _unwrapped(found, keys.previous)
        if data_key is not None:
            _write(directory, data_key, keys.key)
    if data_key is None:
        tried = "neither key nor prev_encryption_key is" if keys.previous else "key is not"
        raise EncryptionRefused(
            f"the {tried} the one that {directory} was encrypted with. Nothing was changed"
        )
    return DirectoryCipher(data_key, keys.cipher)


def _begin(directory: Path, keys: EncryptionKeys, *, used: bool) -> DirectoryCipher | None:
    if not keys.key:
        return None
    if used:
        raise EncryptionRefused(
            f"{directory} holds data that is not encrypted. Move it away and let this node fetch "
            "its streams from its peers, or restore a backup into the empty directory"
        )
    data_key = secrets.token_bytes(_KEY_BYTES)
    _write(directory, data_key, keys.key)
    return DirectoryCipher(data_key, keys.cipher)


def _write(directory: Path, data_key: bytes, key: str) -> None:
    """The file is whole and on disk when this returns, or as it was."""
    salt, nonce = secrets.token_bytes(16), secrets.token_bytes(_NONCE_BYTES)
    wrapped = ChaCha20Poly1305(_derived(key.encode(), salt)).encrypt(nonce, data_key, None)
    body = msgspec.json.encode(_KeyFile(_VERSION, salt, nonce, wrapped))
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = directory / f"{FILE_NAME}.new"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    new.replace(directory / FILE_NAME)
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _unwrapped(found: _KeyFile, key: str) -> bytes | None:
    try:
        cipher = ChaCha20Poly1305(_derived(key.encode(), found.salt))
        return cipher.decrypt(found.nonce, found.wrapped, None)
    except (InvalidTag, ValueError):
        return None


def _derived(key: bytes, purpose: bytes) -> bytes:
    return hmac.new(key, b"jetraft " + purpose, hashlib.sha256).digest()
