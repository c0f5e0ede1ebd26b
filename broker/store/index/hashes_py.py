"""Which subjects a segment may have, in four bytes each: their hashes, sorted.

Owns: the hash and the form of the set. This twin is the specification of _hashes.pyx.
May not touch: segments, the index.
Spec: docs/decisions/0009-subjects-in-a-packed-table.md. Hashes live in memory only."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection


def subject_hashes(subjects: Collection[bytes]) -> bytes:
    """Of all these subjects, sorted, four bytes each."""
    return array("I", sorted(map(_hashed, subjects))).tobytes()


def among_hashes(hashes: bytes, subject: bytes) -> bool:
    """False only when the subject was not among those hashed."""
    values = memoryview(hashes).cast("I")
    value = _hashed(subject)
    at = bisect_left(values, value)
    return at < len(values) and values[at] == value


def _hashed(subject: bytes) -> int:
    """FNV-1a with a last stir, so that its low bits are good enough for slots."""
    value = 2166136261
    for byte in subject:
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    value = (value ^ value >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    value = (value ^ value >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return value ^ value >> 16
