"""A set of patterns: does one of them match a literal subject?

Owns: a token tree of patterns, for filters of consumers and readers.
May not touch: overlap of patterns (overlap.py), subscriptions (tree.py).
Spec: NATS subjects; `matches` in grammar.py defines the match."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_STAR: Final = b"*"
_REST: Final = b">"


class _Node:
    __slots__ = ("children", "pattern")

    def __init__(self) -> None:
        self.children: dict[bytes, _Node] = {}
        self.pattern: bytes | None = None  # the pattern that ends at this node


class Patterns:
    """Patterns must be valid; duplicates count once."""

    def __init__(self, patterns: Iterable[bytes]) -> None:
        self._root = _Node()
        for pattern in patterns:
            self.add(pattern)

    def add(self, pattern: bytes) -> None:
        node = self._root
        for token in pattern.split(b"."):
            found = node.children.get(token)
            if found is None:
                found = node.children[token] = _Node()
            node = found
        node.pattern = pattern

    def take(self, subject: bytes) -> bool:
        """Does some pattern of the set match this literal subject?"""
        tokens = subject.split(b".")
        stack = [(self._root, 0)]
        while stack:
            node, at = stack.pop()
            if at == len(tokens):
                if node.pattern is not None:
                    return True
                continue
            children = node.children
            rest = children.get(_REST)
            if rest is not None and rest.pattern is not None:
                return True
            for token in (_STAR, tokens[at]):
                if token in children:
                    stack.append((children[token], at + 1))
        return False
