"""Many patterns at once: which of them meet a given one.

Owns: a tree of patterns by token, for checks of long lists.
May not touch: subscriptions (broker.subjects.tree finds those of a literal subject).
Spec: core contract 2 (wildcards); `collides` and `is_subset` of the grammar say what is meant.

Cost: a question follows the branches that can meet the pattern, so a list of n patterns that begin
differently is checked in n steps rather than in n * n comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

_STAR: Final = b"*"
_REST: Final = b">"


class _Node:
    __slots__ = ("children", "pattern")

    def __init__(self) -> None:
        self.children: dict[bytes, _Node] = {}
        self.pattern: bytes | None = None  # the one that ends here


class Patterns:
    """Patterns must be valid; one that is there twice counts once."""

    def __init__(self, patterns: Iterable[bytes]) -> None:
        self._root = _Node()
        for pattern in patterns:
            node = self._root
            for token in pattern.split(b"."):
                node = node.children.setdefault(token, _Node())
            node.pattern = pattern

    def meet(self, pattern: bytes) -> bool:
        """Is there one here that some literal subject matches as well?"""
        return any(True for _ in self._colliding(self._root, pattern.split(b".")))

    def meets_another(self, pattern: bytes) -> bool:
        """Is there another one here that some literal subject matches as well?"""
        found = self._colliding(self._root, pattern.split(b"."))
        return any(other != pattern for other in found)

    def within_another(self, pattern: bytes) -> bool:
        """Is there another one here that matches all that this one matches?"""
        found = self._holding(self._root, pattern.split(b"."))
        return any(other != pattern for other in found)

    def take(self, subject: bytes) -> bool:
        """Is there one here that matches this literal subject?"""
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
