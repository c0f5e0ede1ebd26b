"""The subject filters of readers, and which subjects of an index they match.

Owns: SubjectFilter and its cache of results.
May not touch: rows, changing the index.
Spec: NATS JetStream, filter subjects of consumers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

from broker.store.index import SubjectIndex
from broker.store.index.index_py import literal_prefix
from broker.subjects import Patterns, has_wildcard

_REST: Final = b">"
_CACHED_MATCHES_MAX = 65536  # per filter; the cache is cleared when it is full


class SubjectFilter:
    """The filters of one reader, with a cache of results. No filters: every subject matches."""

    __slots__ = ("_cached", "_named", "_tree", "literals", "patterns")

    def __init__(self, patterns: tuple[bytes, ...]) -> None:
        self.patterns = patterns
        literal = not any(map(has_wildcard, patterns))
        # The patterns, if none of them has a wildcard; otherwise empty.
        self.literals = patterns if literal else ()
        self._named = frozenset(self.literals)
        self._tree = None if literal else Patterns(patterns)
        self._cached: dict[bytes, bool] = {}

    def __call__(self, subject: bytes) -> bool:
        if self._tree is None:
            return not self.patterns or subject in self._named
        matched = self._cached.get(subject)
        if matched is None:
            if len(self._cached) >= _CACHED_MATCHES_MAX:
                self._cached.clear()
            matched = self._cached[subject] = self._tree.take(subject)
        return matched

    def any_of(self, subjects: Iterable[bytes]) -> bool:
        return any(self(subject) for subject in subjects)


def matching_subjects(index: SubjectIndex, wanted: SubjectFilter) -> Iterator[bytes]:
    """Stored subjects that some pattern matches, each once. The index must not change during the
    iteration.

    Patterns with a common prefix share one walk, so thousands of them cost no more than one."""
    if len(wanted.patterns) == 1:
        yield from index.matching(wanted.patterns[0])
        return
    prefixes: list[bytes] = []
    for prefix in sorted({literal_prefix(p) for p in wanted.patterns if has_wildcard(p)}):
        if not prefixes or not prefix.startswith(prefixes[-1]):
            prefixes.append(prefix)
    for prefix in prefixes:
        yield from filter(wanted, index.matching(prefix + _REST))
    for subject in dict.fromkeys(wanted.patterns):
        if not has_wildcard(subject) and subject in index:
            at = bisect_right(prefixes, subject)
            if not at or not subject.startswith(prefixes[at - 1]):
                yield subject
