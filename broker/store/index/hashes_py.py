"""Sets of subjects as sorted 32-bit hashes: which subjects a segment may have, in 4 bytes each.

Owns: the hash function and the layout of the set. This twin is the specification of _hashes.pyx.
May not touch: segments, the index.
Spec: docs/decisions/0009-subjects-in-a-packed-table.md. Hashes are never written to disk."""

from __future__ import annotations

import secrets
from array import array
from bisect import bisect_left
from collections.abc import Collection
from struct import Struct as Packing
from typing import Final

KEY: Final = (secrets.randbits(64), secrets.randbits(64))  # of this process
_WORD: Final = Packing("<Q")
_ONES: Final = (1 << 64) - 1


def subject_hashes(subjects: Collection[bytes]) -> bytes:
    """The hashes of the subjects, sorted, four bytes each."""
    return array("I", sorted(map(_hashed, subjects))).tobytes()


def among_hashes(hashes: bytes, subject: bytes) -> bool:
    """False only if the subject is not in the set."""
    values = memoryview(hashes).cast("I")
    value = _hashed(subject)
    at = bisect_left(values, value)
    return at < len(values) and values[at] == value


def _hashed(subject: bytes) -> int:
    """SipHash-1-3, its two halves combined. Keyed, because clients choose the subjects: otherwise
    they could choose many that share a slot of a hash table."""
    first, second = KEY
    v = [
        first ^ 0x736F6D6570736575,
        second ^ 0x646F72616E646F6D,
        first ^ 0x6C7967656E657261,
        second ^ 0x7465646279746573,
    ]
    padding = bytes(7 - len(subject) % 8) + bytes([len(subject) & 0xFF])
    for (word,) in _WORD.iter_unpack(subject + padding):
        v[3] ^= word
        _mix(v)
        v[0] ^= word
    v[2] ^= 0xFF
    for _ in range(3):
        _mix(v)
    value = v[0] ^ v[1] ^ v[2] ^ v[3]
    return (value ^ value >> 32) & 0xFFFFFFFF


def _mix(v: list[int]) -> None:
    v[0] = v[0] + v[1] & _ONES
    v[1] = _rotated(v[1], 13) ^ v[0]
    v[0] = _rotated(v[0], 32)
    v[2] = v[2] + v[3] & _ONES
    v[3] = _rotated(v[3], 16) ^ v[2]
    v[0] = v[0] + v[3] & _ONES
    v[3] = _rotated(v[3], 21) ^ v[0]
    v[2] = v[2] + v[1] & _ONES
    v[1] = _rotated(v[1], 17) ^ v[2]
    v[2] = _rotated(v[2], 32)


def _rotated(word: int, count: int) -> int:
    return (word << count | word >> 64 - count) & _ONES
