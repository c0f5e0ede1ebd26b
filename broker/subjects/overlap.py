"""Which patterns of a set overlap a given one, or include it.

Owns: patterns with their owners, indexed by shape.
May not touch: matching of literal subjects (patterns.py), subscriptions (tree.py).
Spec: NATS subjects; `collides` and `is_subset` in grammar.py define overlap and inclusion.

The shape of a pattern is its length and the positions of its literal tokens. Two patterns overlap
if their lengths permit it and they agree at every position where both have a literal. So for two
shapes it is enough to look up the tokens at the common positions in a table: n patterns of k
shapes are compared in n * k lookups, whatever their tokens are. (Pair by pair, or along a trie,
8,000 x `q.a1.x` and 8,000 x `q.*.y1` take 64 million comparisons.) All work is done in steps."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Final, NamedTuple

from broker.subjects.steps import STEP_ITEMS, Steps

_STAR: Final = b"*"
_REST: Final = b">"

Positions = tuple[int, ...]
Key = tuple[bytes, ...] | bytes
NOBODY: Final = object()


class Shape(NamedTuple):
    fixed: int  # tokens without a final `>`
    rest: bool  # ends with `>`
    literals: Positions


class _Table:
    """The patterns of one shape by their tokens at some positions: how many of which owner."""

    __slots__ = ("owners", "positions", "seen")

    def __init__(self, positions: Positions) -> None:
        self.positions = positions
        self.owners: dict[Key, dict[Hashable, int]] = {}
        # The patterns entered so far; None once it has all of them.
        self.seen: set[bytes] | None = set()

    def add(self, pattern: bytes, tokens: list[bytes], owner: Hashable) -> None:
        if self.seen is not None:
            if pattern in self.seen:
                return
            self.seen.add(pattern)
        counts = self.owners.setdefault(_key(tokens, self.positions), {})
        counts[owner] = counts.get(owner, 0) + 1

    def discard(self, pattern: bytes, tokens: list[bytes], owner: Hashable) -> None:
        if self.seen is not None:
            if pattern not in self.seen:
                return
            self.seen.remove(pattern)
        key = _key(tokens, self.positions)
        counts = self.owners[key]
        counts[owner] -= 1
        if not counts[owner]:
            del counts[owner]
            if not counts:
                del self.owners[key]


class _Family:
    """All patterns of one shape."""

    __slots__ = ("patterns", "shape", "tables")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.patterns: dict[bytes, Hashable] = {}
        self.tables: dict[Positions, _Table] = {}


class PatternIndex:
    """Patterns must be valid; each has one owner, and counts once.

    Checks may be interleaved with changes: the result of a check is valid for the patterns that
    were in the set the whole time."""

    def __init__(self) -> None:
        self._families: dict[Shape, _Family] = {}
        self.lookups = 0  # for tests: the work done

    def __len__(self) -> int:
        return sum(len(family.patterns) for family in self._families.values())

    def add(self, pattern: bytes, owner: Hashable = None) -> None:
        tokens = pattern.split(b".")
        shape = _shape(tokens)
        family = self._families.get(shape)
        if family is None:
            family = self._families[shape] = _Family(shape)
        if pattern in family.patterns:
            return
        family.patterns[pattern] = owner
        for table in family.tables.values():
            table.add(pattern, tokens, owner)

    def discard(self, pattern: bytes) -> None:
        tokens = pattern.split(b".")
        shape = _shape(tokens)
        family = self._families.get(shape)
        if family is None or pattern not in family.patterns:
            return
        owner = family.patterns.pop(pattern)
        for table in family.tables.values():
            table.discard(pattern, tokens, owner)
        if not family.patterns:
            del self._families[shape]

    def overlapping(self, pattern: bytes, *, but: Hashable = NOBODY) -> Steps[bool]:
        """Does a pattern of another owner than `but` match a subject that this one matches?"""
        tokens = pattern.split(b".")
        shape = _shape(tokens)
        own = set(shape.literals)
        for family in list(self._families.values()):
            if not _lengths_meet(shape, family.shape):
                continue
            common = tuple(at for at in family.shape.literals if at in own)
            if (yield from self._finds(family, common, tokens, but)):
                return True
        return False

    def including(self, pattern: bytes, *, but: Hashable = NOBODY) -> Steps[bool]:
        """Does a pattern of another owner than `but` match everything that this one matches?"""
        tokens = pattern.split(b".")
        shape = _shape(tokens)
        own = set(shape.literals)
        for family in list(self._families.values()):
            wide = family.shape
            fits = _lengths_within(shape, wide) and own.issuperset(wide.literals)
            if fits and (yield from self._finds(family, wide.literals, tokens, but)):
                return True
        return False

    def _finds(
        self, family: _Family, positions: Positions, tokens: list[bytes], but: Hashable
    ) -> Steps[bool]:
        self.lookups += 1
        if self.lookups % STEP_ITEMS == 0:
            yield
        if positions == family.shape.literals:  # only one pattern of this shape can agree
            other = _pattern(family.shape, tokens)
            return other in family.patterns and family.patterns[other] != but
        table = family.tables.get(positions)
        if table is None:
            table = family.tables[positions] = _Table(positions)
        if table.seen is not None:
            yield from self._fill(family, table)
        counts = table.owners.get(_key(tokens, positions))
        return counts is not None and (len(counts) > 1 or but not in counts)

    def _fill(self, family: _Family, table: _Table) -> Steps[None]:
        """Enter the patterns that existed before; later changes are entered when they are made."""
        for at, pattern in enumerate(list(family.patterns)):
            if at % STEP_ITEMS == STEP_ITEMS - 1:
                yield
            if pattern in family.patterns:
                table.add(pattern, pattern.split(b"."), family.patterns[pattern])
        self.lookups += len(family.patterns)
        table.seen = None


def first_overlap(patterns: Iterable[bytes]) -> Steps[int | None]:
    """The first position whose pattern overlaps a later one, or equals it."""
    index, found = PatternIndex(), None
    ordered = list(patterns)
    for at in range(len(ordered) - 1, -1, -1):
        if at % STEP_ITEMS == 0:
            yield
        if (yield from index.overlapping(ordered[at])):
            found = at
        index.add(ordered[at])
    return found


def any_included(patterns: Sequence[bytes]) -> Steps[bool]:
    """Whether a pattern matches everything that another one, or an equal one, matches."""
    index = PatternIndex()
    for at, pattern in enumerate(patterns):
        if at % STEP_ITEMS == STEP_ITEMS - 1:
            yield
        index.add(pattern, at)
    if len(index) < len(patterns):
        return True
    for at, pattern in enumerate(patterns):
        if (yield from index.including(pattern, but=at)):
            return True
    return False


def any_overlap(patterns: Iterable[bytes], others: Iterable[bytes]) -> Steps[bool]:
    """Whether a pattern of the first set overlaps one of the second."""
    index = PatternIndex()
    for at, pattern in enumerate(patterns):
        if at % STEP_ITEMS == 0:
            yield
        index.add(pattern)
    for other in others:
        if (yield from index.overlapping(other)):
            return True
    return False


def _shape(tokens: list[bytes]) -> Shape:
    rest = tokens[-1] == _REST
    fixed = len(tokens) - rest
    if _STAR not in tokens:
        return Shape(fixed, rest, _all_positions(fixed))
    literals = tuple(at for at in range(fixed) if tokens[at] != _STAR)
    return Shape(fixed, rest, literals)


_RANGES: Final = [tuple(range(length)) for length in range(64)]


def _all_positions(length: int) -> Positions:
    return _RANGES[length] if length < len(_RANGES) else tuple(range(length))


def _pattern(shape: Shape, tokens: list[bytes]) -> bytes:
    """The pattern of this shape with these tokens at its literal positions."""
    if len(shape.literals) == shape.fixed:
        taken = tokens[: shape.fixed]
    else:
        taken = [_STAR] * shape.fixed
        for at in shape.literals:
            taken[at] = tokens[at]
    if shape.rest:
        taken.append(_REST)
    return b".".join(taken)


def _key(tokens: list[bytes], positions: Positions) -> Key:
    if len(positions) == 1:
        return tokens[positions[0]]
    return tuple([tokens[at] for at in positions])


def _lengths_meet(one: Shape, other: Shape) -> bool:
    if one.rest:
        return other.rest or other.fixed > one.fixed
    return one.fixed > other.fixed if other.rest else one.fixed == other.fixed


def _lengths_within(narrow: Shape, wide: Shape) -> bool:
    if not wide.rest:
        return not narrow.rest and narrow.fixed == wide.fixed
    return narrow.fixed >= wide.fixed if narrow.rest else narrow.fixed > wide.fixed
