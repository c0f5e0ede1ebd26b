"""Sets of subjects as sorted 32-bit hashes: which subjects a segment may have, in 4 bytes each.

Owns: the hash function and the layout of the set. This twin is the specification of _hashes.pyx.
May not touch: segments, the index.
Spec: docs/decisions/0009-subjects-in-a-packed-table.md. Hashes are never written to disk."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection


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
    """FNV-1a with a final mix, so that the low bits can select a hash table slot."""
    value = 2166136261
    for byte in subject:
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    value = (value ^ value >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    value = (value ^ value >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return value ^ value >> 16
