"""Looking for subjects: the index of a stream, and the filters of its readers.

Owns: SubjectFilter, and the export of whichever index broker.wire has chosen.
May not touch: rows.
Spec: index_py.py states what the index means; JetStream sheet 5.2 (filter subjects)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from broker.store.index.index_py import literal_prefix
from broker.subjects import Patterns, has_wildcard
from broker.wire import IMPLEMENTATION

if TYPE_CHECKING or IMPLEMENTATION == "python":
    from broker.store.index.hashes_py import among_hashes, subject_hashes
    from broker.store.index.index_py import SubjectEntry, SubjectIndex
else:
    from broker.store.index._hashes import among_hashes, subject_hashes
    from broker.store.index._index import SubjectEntry, SubjectIndex

__all__ = [
    "SubjectEntry",
    "SubjectFilter",
    "SubjectIndex",
    "among_hashes",
    "subject_hashes",
    "subjects_taken",
]

_REST: Final = b">"
_FILTER_MEMO_MAX = 65536  # verdicts remembered per filter; beyond it they are found anew


class SubjectFilter:
    """Filters of one reader with the verdicts given so far. No filters: every subject matches."""

    __slots__ = ("_named", "_tree", "_verdicts", "literals", "patterns")

    def __init__(self, patterns: tuple[bytes, ...]) -> None:
        self.patterns = patterns
        literal = not any(map(has_wildcard, patterns))
        # The subjects themselves when no pattern has a wildcard, else empty.
        self.literals = patterns if literal else ()
        self._named = frozenset(self.literals)
        self._tree = None if literal else Patterns(patterns)
        self._verdicts: dict[bytes, bool] = {}

    def __call__(self, subject: bytes) -> bool:
        if self._tree is None:
            return not self.patterns or subject in self._named
        verdict = self._verdicts.get(subject)
        if verdict is None:
            if len(self._verdicts) >= _FILTER_MEMO_MAX:
                self._verdicts.clear()
            verdict = self._verdicts[subject] = self._tree.take(subject)
        return verdict

    def any_of(self, subjects: Iterable[bytes]) -> bool:
        return any(self(subject) for subject in subjects)


def subjects_taken(index: SubjectIndex, wanted: SubjectFilter) -> Iterator[bytes]:
    """Stored subjects that some pattern matches, each once. The stream must not change meanwhile.

    Patterns that begin alike share one walk, so thousands of them cost no more than one."""
    if len(wanted.patterns) == 1:
        yield from index.matching(wanted.patterns[0])
        return
    beginnings: list[bytes] = []
    for prefix in sorted({literal_prefix(p) for p in wanted.patterns if has_wildcard(p)}):
        if not beginnings or not prefix.startswith(beginnings[-1]):
            beginnings.append(prefix)
    for prefix in beginnings:
        yield from filter(wanted, index.matching(prefix + _REST))
    for subject in dict.fromkeys(wanted.patterns):
        if not has_wildcard(subject) and subject in index:
            at = bisect_right(beginnings, subject)
            if not at or not subject.startswith(beginnings[at - 1]):
                yield subject
