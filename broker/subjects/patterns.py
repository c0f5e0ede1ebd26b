"""A set of patterns: which of them overlap a given one.

Owns: a token tree of patterns, for checks of long lists.
May not touch: subscriptions (tree.py finds those of a literal subject).
Spec: NATS subjects; `collides` and `is_subset` in grammar.py define overlap and inclusion.

Cost: a query follows only branches that can overlap the pattern, so n patterns with different first
tokens are checked in n steps rather than in n * n comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
            node = self._root
            for token in pattern.split(b"."):
                node = node.children.setdefault(token, _Node())
            node.pattern = pattern

    def meet(self, pattern: bytes) -> bool:
        """Does some pattern of the set match a literal subject that this pattern matches?"""
        return any(True for _ in self._colliding(self._root, pattern.split(b".")))

    def meets_another(self, pattern: bytes) -> bool:
        """Like `meet`, but the pattern itself does not count."""
        found = self._colliding(self._root, pattern.split(b"."))
        return any(other != pattern for other in found)

    def within_another(self, pattern: bytes) -> bool:
        """Does another pattern of the set match everything that this one matches?"""
        found = self._holding(self._root, pattern.split(b"."))
        return any(other != pattern for other in found)

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

    def _colliding(self, root: _Node, tokens: list[bytes]) -> Iterator[bytes]:
        stack = [(root, 0)]
        while stack:
            node, at = stack.pop()
            rest = node.children.get(_REST)
            if at == len(tokens):
                if node.pattern is not None:
                    yield node.pattern
                continue
            if rest is not None and rest.pattern is not None:
                yield rest.pattern
            token = tokens[at]
            if token == _REST:
                yield from _all(node)
            elif token == _STAR:
                stack += [(n, at + 1) for t, n in node.children.items() if t != _REST]
            else:
                stack += [(node.children[t], at + 1) for t in (_STAR, token) if t in node.children]

    def _holding(self, root: _Node, tokens: list[bytes]) -> Iterator[bytes]:
        stack = [(root, 0)]
        while stack:
            node, at = stack.pop()
            if at == len(tokens):
                if node.pattern is not None:
                    yield node.pattern
                continue
            rest = node.children.get(_REST)
            if rest is not None and rest.pattern is not None:
                yield rest.pattern
            token = tokens[at]
            if token == _REST:
                continue
            stack += [(node.children[t], at + 1) for t in {_STAR, token} if t in node.children]


def _all(node: _Node) -> Iterator[bytes]:
    stack = list(node.children.values())
    while stack:
        node = stack.pop()
        if node.pattern is not None:
            yield node.pattern
        stack.extend(node.children.values())
