"""Names of streams and consumers: which are valid, and how the broker generates its own.

Owns: the asset name rules, the eight-character name hash, generated names.
May not touch: random numbers; random bytes are an argument, so that a replay gives the same names.
Spec: nats-server: asset names, getHash, NUID."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

NAME_BYTES_MAX: Final = 255
DESCRIPTION_BYTES_MAX: Final = 4096
METADATA_BYTES_MAX: Final = 131_072
NUID_RANDOM_BYTES: Final = 22  # bytes of randomness one generated id consumes

_BASE62: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_FORBIDDEN: Final = frozenset(" \t\r\n\f.*>\\/")


def valid_asset_name(name: str) -> bool:
    """Not empty, no blanks, no subject separators or wildcards, no path separators."""
    return bool(name) and _FORBIDDEN.isdisjoint(name)


def has_path_separator(name: str) -> bool:
    return "/" in name or "\\" in name


def get_hash(text: str, *, size: int = 8) -> str:
    """The name hash that NATS clients and servers use: SHA-256 bytes reduced to base 62."""
    digest = sha256(text.encode()).digest()[:size]
    return "".join(_BASE62[byte % 62] for byte in digest)


def nuid(randomness: bytes) -> str:
    """A 22 character id like the NUIDs of NATS, from as many random bytes."""
    assert len(randomness) >= NUID_RANDOM_BYTES, "an id needs 22 random bytes"
    return "".join(_BASE62[byte % 62] for byte in randomness[:NUID_RANDOM_BYTES])


def consumer_name(randomness: bytes) -> str:
    """The name of a consumer that was created without one."""
    return get_hash(nuid(randomness))


def metadata_exceeds(metadata: dict[str, str], bytes_max: int) -> bool:
    """Characters are counted first, which is fast: a body may contain a megabyte of metadata."""
    if sum(map(len, metadata)) + sum(map(len, metadata.values())) > bytes_max:
        return True
    size = sum(len(key.encode()) + len(value.encode()) for key, value in metadata.items())
    return size > bytes_max
