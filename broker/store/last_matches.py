"""A cache of the last message that matches a subject pattern.

Owns: how far each pattern was searched, and what was found.
May not touch: the messages; it asks the store.
A publish may name a pattern whose last sequence it expects. Every replica checks that when it
applies the entry, and a search from the end may visit every subject of the stream. So the search
runs before, in steps, and apply finds its result here."""

from __future__ import annotations

from typing import Protocol

from broker.subjects import Steps, finish

REMEMBERED_MAX = 256  # patterns; beyond it the cache is cleared


class SearchedMessages(Protocol):
    @property
    def last_seq(self) -> int: ...
    def has(self, seq: int, /) -> bool: ...
    def next_matching_steps(self, filters: tuple[bytes, ...], start: int, /) -> Steps[int]: ...
    def last_matching_steps(self, filters: tuple[bytes, ...], /) -> Steps[int]: ...


class LastMatches:
    """The cache of one store. If the found message was removed since, it is searched for again."""

    __slots__ = ("_found", "_store")

    def __init__(self, store: SearchedMessages) -> None:
        self._store = store
        self._found: dict[bytes, tuple[int, int]] = {}  # searched up to, and what was found or 0

    def steps(self, pattern: bytes) -> Steps[int]:
        """Its last sequence, 0 if there is none. The store must not change between two steps."""
        store = self._store
        searched, found = self._found.get(pattern, (0, 0))
        newer = not searched or (yield from store.next_matching_steps((pattern,), searched + 1))
        if newer or (found and not store.has(found)):
            found = yield from store.last_matching_steps((pattern,))
        if len(self._found) >= REMEMBERED_MAX:
            self._found.clear()
        self._found[pattern] = (store.last_seq, found)
        return found

    def find(self, pattern: bytes) -> int:
        return finish(self.steps(pattern))
