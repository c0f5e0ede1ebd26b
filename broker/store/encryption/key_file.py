"""Encryption at rest: the key of a data directory.

Owns: the file `encryption.json` of a directory.
May not touch: how values are sealed (directory_cipher.py, which is imported when there is a key:
its library takes 7 MB).
Spec: docs/decisions/0040-encryption-at-rest.md; NATS, jetstream { cipher, key,
prev_encryption_key }.

    file     JSON: version, salt, nonce, wrapped: the data key, sealed with a key that
             HMAC-SHA256 derives from the configured one and the salt

The data key of a directory never changes: a new configured key wraps it again."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from broker.store.encryption.directory_cipher import DirectoryCipher

FILE_NAME: Final = "encryption.json"
_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_VERSION: Final = 1


class EncryptionRefused(Exception):
    """The directory cannot be used with this configuration; the text is for the operator."""


@dataclass(frozen=True, slots=True)
class EncryptionKeys:
    """As configured. An empty key: no encryption."""

    cipher: str = "chachapoly"
    key: str = ""
    previous: str = ""


class _KeyFile(msgspec.Struct):
    version: int
    salt: bytes
    nonce: bytes
    wrapped: bytes


def open_directory(directory: Path, keys: EncryptionKeys, *, used: bool) -> DirectoryCipher | None:
    """The cipher of the directory; None if it is not encrypted. `used`: it already contains data.
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
    from broker.store.encryption.directory_cipher import DirectoryCipher, unwrap

    data_key = unwrap(found.wrapped, keys.key, found.salt, found.nonce)
    if data_key is None and keys.previous:
        data_key = unwrap(found.wrapped, keys.previous, found.salt, found.nonce)
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
    from broker.store.encryption.directory_cipher import DirectoryCipher

    data_key = secrets.token_bytes(_KEY_BYTES)
    _write(directory, data_key, keys.key)
    return DirectoryCipher(data_key, keys.cipher)


def _write(directory: Path, data_key: bytes, key: str) -> None:
    """Replace the file atomically; it is on disk when this returns."""
    from broker.store.encryption.directory_cipher import wrap

    salt, nonce = secrets.token_bytes(16), secrets.token_bytes(_NONCE_BYTES)
    wrapped = wrap(data_key, key, salt, nonce)
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
