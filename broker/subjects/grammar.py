"""The grammar of subjects: what is valid, what matches what.

Owns: tokens, wildcards, and the relations between literal subjects and patterns.
May not touch: subscriptions, tables, anything with state.
Spec: NATS subjects; `*` matches one token, `>` one or more tokens at the end."""

from __future__ import annotations

import re
from collections.abc import Callable

BLANKS = frozenset(b" \t\r\n\f")


def tokens(subject: bytes) -> list[bytes]:
    return subject.split(b".")


def valid_subject(subject: bytes, *, wildcards: bool) -> bool:
    """Non-empty tokens without blanks, `>` only as the last one; no wildcards unless allowed."""
    if not subject or not BLANKS.isdisjoint(subject):
        return False
    parts = subject.split(b".")
    if b"" in parts:
        return False
    if not wildcards:
        return b"*" not in parts and b">" not in parts
    return b">" not in parts[:-1]


def has_wildcard(subject: bytes) -> bool:
    """True when a whole token is a wildcard; `foo*` is a literal."""
    if b"*" not in subject and b">" not in subject:
        return False
    parts = subject.split(b".")
    return b"*" in parts or parts[-1] == b">"


def matches(subject: bytes, pattern: bytes) -> bool:
    """Does the pattern match the literal subject? Wildcards in `subject` are plain text."""
    if subject == pattern:
        return True
    have, want = subject.split(b"."), pattern.split(b".")
    for position, token in enumerate(want):
        if token == b">" and position == len(want) - 1:
            return len(have) > position
        if position >= len(have) or token not in (b"*", have[position]):
            return False
    return len(have) == len(want)


def matcher(pattern: bytes) -> Callable[[bytes], object]:
    """`matches`, prepared for one pattern and many subjects."""
    *front, last = (b"[^.]*" if t == b"*" else re.escape(t) for t in pattern.split(b"."))
    end = b".*" if pattern == b">" or pattern.endswith(b".>") else last
    return re.compile(rb"\.".join([*front, end]), re.DOTALL).fullmatch


def collides(one: bytes, other: bytes) -> bool:
    """Is there a literal subject that both patterns match?"""
    left, right = one.split(b"."), other.split(b".")
    for position in range(min(len(left), len(right))):
        a, b = left[position], right[position]
        if b">" in (a, b):
            return True
        if a != b and b"*" not in (a, b):
            return False
    return len(left) == len(right)


def intersection(one: bytes, other: bytes) -> bytes | None:
    """The pattern of the subjects that both match; None when there is none."""
    left, right = one.split(b"."), other.split(b".")
    shared: list[bytes] = []
    for position in range(max(len(left), len(right))):
        a, b = left[position : position + 1], right[position : position + 1]
        if a == [b">"]:
            return b".".join(shared + right[position:]) if b else None
        if b == [b">"]:
            return b".".join(shared + left[position:]) if a else None
        if not a or not b or (a != b and b"*" not in (a[0], b[0])):
            return None
        shared += b if a == [b"*"] else a
    return b".".join(shared)


def is_subset(narrow: bytes, wide: bytes) -> bool:
    """Does `wide` match every literal subject that `narrow` matches?"""
    left, right = narrow.split(b"."), wide.split(b".")
    for position, token in enumerate(right):
        if position >= len(left):
            return False
        if token == b">":
            return True
        have = left[position]
        if have == b">" or token not in (b"*", have):
            return False
    return len(left) == len(right)
