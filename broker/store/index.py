"""The subjects of a stream: how many messages each has, and in which segments to look for them.

Owns: one entry per subject that is stored now, and the order needed for wildcard questions.
May not touch: rows. What an entry says of `first` and `last` are bounds; the store sharpens them.
Spec: JetStream sheet 2.3 (num_subjects, subjects), 3.2 (last sequence of a subject).

Cost: an appended batch touches each of its distinct subjects once, however many are stored."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from broker.subjects import has_wildcard, matches

_FRESH_MAX = 1024
_HOMES_KEPT = 16  # shorter lists of segments are not worth trimming
_FILTER_MEMO_MAX = 65536  # verdicts remembered per filter; beyond it they are found anew


@dataclass(slots=True)
class SubjectEntry:
    """Invariant: every stored message of the subject lies in [first, last]; count is exact."""

    count: int
    first: int  # the first message, unless that one is gone by now
    last: int  # the last message, unless that one is gone by now
    homes: list[int]  # first sequences of the segments that got some, ascending; some may be gone
    # Sequence and size of every message, flat, oldest first; None when they are not known. With
    # it the oldest can be dropped without reading a block. Entries at the front may be gone.
    trail: array[int] | None = None


class SubjectIndex:
    """Entries by subject. `homes` lets a search for one subject skip all other segments."""

    __slots__ = ("_entries", "_fresh", "_ordered", "floor")

    def __init__(self) -> None:
        self.floor = 0  # no message is stored below; set by the store
        self._entries: dict[bytes, SubjectEntry] = {}
        self._ordered: list[bytes] = []  # sorted; may hold subjects that are gone
        self._fresh: list[bytes] = []  # not sorted in yet

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, subject: bytes) -> bool:
        return subject in self._entries

    def get(self, subject: bytes) -> SubjectEntry | None:
        return self._entries.get(subject)

    def added(
        self, subject: bytes, *, count: int, first: int, last: int, home: int
    ) -> SubjectEntry:
        """`count` messages came to the end of the stream, in the segment `home`."""
        entry = self._entries.get(subject)
        if entry is None:
            entry = self._entries[subject] = SubjectEntry(count, first, last, [home])
            self._fresh.append(subject)
            if len(self._fresh) > _FRESH_MAX + 2 * len(self._entries):  # subjects come and go
                self._ordered, self._fresh = [], list(self._entries)
            return entry
        entry.count += count
        entry.last = last
        homes = entry.homes
        if homes[-1] != home:
            homes.append(home)
            lowest = max(entry.first, self.floor)
            if len(homes) > _HOMES_KEPT and homes[len(homes) // 2] <= lowest:
                del homes[: bisect_right(homes, lowest) - 1]
        return entry

    def trail_of(self, entry: SubjectEntry) -> array[int] | None:
        """Its trail without what left at the front; None when it does not add up."""
        trail = entry.trail
        if trail is None:
            return None
        gone = 0
        while gone < len(trail) and trail[gone] < self.floor:
            gone += 2
        if gone:
            del trail[:gone]
        if len(trail) != 2 * entry.count:
            entry.trail = None
        return entry.trail

    def removed(self, subject: bytes, count: int) -> None:
        entry = self._entries[subject]
        entry.count -= count
        assert entry.count >= 0, f"subject {subject!r} has lost more messages than it had"
        if entry.count == 0:
            del self._entries[subject]

    def clear(self) -> None:
        self._entries.clear()
        self._ordered.clear()
        self._fresh.clear()

    def counts(self) -> Iterator[tuple[bytes, int]]:
        return ((subject, entry.count) for subject, entry in self._entries.items())

    def matching(self, pattern: bytes) -> Iterator[bytes]:
        """Stored subjects under the pattern, sorted. The stream must not change meanwhile."""
        if not has_wildcard(pattern):
            if pattern in self._entries:
                yield pattern
            return
        prefix = literal_prefix(pattern)
        ordered = self._sorted()
        at = bisect_left(ordered, prefix)
        everything = pattern == prefix + b">"
        entries = self._entries
        before = None
        while at < len(ordered):
            subject = ordered[at]
            at += 1
            if not subject.startswith(prefix):
                return
            if subject == before or subject not in entries:
                continue
            before = subject
            if (everything and len(subject) > len(prefix)) or matches(subject, pattern):
                yield subject

    def _sorted(self) -> list[bytes]:
        if self._fresh:
            self._ordered += self._fresh
            self._fresh = []
            if len(self._ordered) > 2 * len(self._entries):
                self._ordered = list(self._entries)
            self._ordered.sort()  # nearly sorted already: close to one pass
        return self._ordered


class SubjectFilter:
    """Filters of one reader with the verdicts given so far. No filters: every subject matches."""

    __slots__ = ("_literal", "_verdicts", "patterns")

    def __init__(self, patterns: tuple[bytes, ...]) -> None:
        self.patterns = patterns
        self._literal = all(not has_wildcard(p) for p in patterns)
        self._verdicts: dict[bytes, bool] = {}

    def __call__(self, subject: bytes) -> bool:
        if self._literal:
            return not self.patterns or subject in self.patterns
        verdict = self._verdicts.get(subject)
        if verdict is None:
            if len(self._verdicts) >= _FILTER_MEMO_MAX:
                self._verdicts.clear()
            verdict = any(matches(subject, pattern) for pattern in self.patterns)
            self._verdicts[subject] = verdict
        return verdict

    def any_of(self, subjects: Iterable[bytes]) -> bool:
        return any(self(subject) for subject in subjects)

    @property
    def literals(self) -> tuple[bytes, ...]:
        """The subjects themselves when no pattern has a wildcard, else empty."""
        return self.patterns if self._literal else ()


def literal_prefix(pattern: bytes) -> bytes:
    """The text before the first wildcard token, with its dot: all matches start with it."""
    kept = []
    for token in pattern.split(b"."):
        if token in (b"*", b">"):
            break
        kept.append(token)
    return b".".join([*kept, b""])
