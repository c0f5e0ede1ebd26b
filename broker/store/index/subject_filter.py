"""The subject filters of readers, and which subjects of an index they match.

Owns: SubjectFilter and its cache of results.
May not touch: rows, changing the index.
Spec: NATS JetStream, filter subjects of consumers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from broker.store.index import SubjectIndex
from broker.store.index.index_py import literal_prefix
from broker.subjects import Patterns, Steps, has_wildcard, matcher

NAMES_PER_PART: Final = 512  # subjects compared in one step
_REST: Final = b">"
# Per filter; the cache is cleared when it is full. A stream keeps 256 filters (messages.py).
_CACHED_MATCHES_MAX = 4096
_CACHED_BYTES_MAX = 128  # of a subject


class SubjectFilter:
    """The filters of one reader, with a cache of results. No filters: every subject matches."""

    __slots__ = ("_cached", "_fits", "_named", "literals", "patterns")

    def __init__(self, patterns: tuple[bytes, ...]) -> None:
        self.patterns = patterns
        # One look at all of them first: there may be a hundred thousand.
        everything = b" ".join(patterns)
        suspect = b"*" in everything or b">" in everything
        literal = not (suspect and any(map(has_wildcard, patterns)))
        # The patterns, if none of them has a wildcard; otherwise empty.
        self.literals = patterns if literal else ()
        self._named = frozenset(self.literals)
        self._fits: Callable[[bytes], object] | None = None
        if not literal:
            single = len(patterns) == 1
            self._fits = matcher(patterns[0]) if single else Patterns(patterns).take
        self._cached: dict[bytes, bool] = {}

    def __call__(self, subject: bytes) -> bool:
        if self._fits is None:
            return not self.patterns or subject in self._named
        matched = self._cached.get(subject)
        if matched is None:
            matched = bool(self._fits(subject))
            if len(subject) <= _CACHED_BYTES_MAX:
                if len(self._cached) >= _CACHED_MATCHES_MAX:
                    self._cached.clear()
                self._cached[subject] = matched
        return matched

    def any_of(self, subjects: Iterable[bytes]) -> bool:
        return any(self(subject) for subject in subjects)


def matching_parts(index: SubjectIndex, wanted: SubjectFilter) -> Iterator[list[bytes]]:
    """Stored subjects that match a pattern, each once, in lists that take bounded work; some are
    empty. The index may change between two lists.

    Patterns with a common prefix share one walk, so thousands of them cost no more than one."""
    named = wanted.literals
    if not named:
        prefixes = _prefixes(wanted.patterns)
        single = len(wanted.patterns) == 1
        for prefix in prefixes:
            pattern = wanted.patterns[0] if single else prefix + _REST
            last: bytes | None = b""
            while last is not None:
                part, last = index.matching_part(pattern, last, NAMES_PER_PART)
                yield part if single else [subject for subject in part if wanted(subject)]
        named = tuple(p for p in wanted.patterns if not _covered(p, prefixes))
    unique = tuple(dict.fromkeys(named))
    for at in range(0, len(unique), NAMES_PER_PART):
        yield [subject for subject in unique[at : at + NAMES_PER_PART] if subject in index]


def _prefixes(patterns: tuple[bytes, ...]) -> list[bytes]:
    """The literal prefixes of the patterns, ascending; none begins with another one."""
    kept: list[bytes] = []
    for prefix in sorted({literal_prefix(p) for p in patterns if has_wildcard(p)}):
        if not kept or not prefix.startswith(kept[-1]):
            kept.append(prefix)
    return kept


def _covered(pattern: bytes, prefixes: list[bytes]) -> bool:
    """Whether the walk over a prefix finds it, or it has a wildcard."""
    at = bisect_right(prefixes, pattern)
    return has_wildcard(pattern) or bool(at and pattern.startswith(prefixes[at - 1]))


def counted(index: SubjectIndex, wanted: SubjectFilter) -> Steps[int]:
    """Number of messages on matching subjects, from the counts in the index: reads no blocks."""
    total = 0
    for part in matching_parts(index, wanted):
        entries = map(index.get, part)
        total += sum(entry.count for entry in entries if entry is not None)
        yield
    return total
