"""The subject mappings of one account, applied to what its clients publish.

Owns: the choice of a destination: by weight, by cluster, first source in the order of the file.
May not touch: the grammar of one mapping (broker/subjects/mapping.py), messages.
Spec: NATS subject mapping. A source whose destinations stay below 100 % keeps the rest itself;
if it is one of its own destinations, the rest goes nowhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import randrange
from typing import Final

from broker.config.options import ALWAYS, MappingDestination, SubjectMapping
from broker.subjects import matches
from broker.subjects.mapping import Mapping

NOWHERE: Final = b""  # the subject of a message that no destination takes
_SUBJECTS_MAX: Final = 8192  # cached subjects
_SUBJECT_BYTES_MAX: Final = 256  # longer subjects are not cached
_SEEDS: Final = 1 << 32


class _Source:
    """One source and its destinations."""

    __slots__ = ("_steps", "_total", "subject")

    def __init__(self, rule: SubjectMapping, cluster: str) -> None:
        self.subject = rule.source.encode()
        self._steps: list[tuple[int, Mapping | None]] = []  # up to this weight; None: unchanged
        self._total = 0
        for one in destinations(rule, cluster):
            self._total += one.weight
            same = one.subject == rule.source
            self._steps.append((self._total, None if same else Mapping(rule.source, one.subject)))

    @property
    def fixed(self) -> bool:
        """Whether equal subjects always go to the same place."""
        mapping = self._steps[0][1]
        return self._steps[0][0] == ALWAYS and not (mapping is not None and mapping.varies)

    def mapped(self, subject: bytes, draw: Callable[[int], int]) -> bytes:
        weight = 0 if self._steps[0][0] == ALWAYS else draw(ALWAYS)
        for limit, mapping in self._steps:
            if weight < limit:
                if mapping is None:
                    return subject
                return mapping(subject, seed=draw(_SEEDS) if mapping.varies else 0) or NOWHERE
        return NOWHERE


def destinations(rule: SubjectMapping, cluster: str = "") -> list[MappingDestination]:
    """The destinations for this cluster, or else those for any; including the share that the
    source keeps."""
    own = [one for one in rule.destinations if one.cluster and one.cluster == cluster]
    found = own or [one for one in rule.destinations if not one.cluster]
    total = sum(one.weight for one in found)
    if total < ALWAYS and all(one.subject != rule.source for one in found):
        found.append(MappingDestination(rule.source, ALWAYS - total))
    return found


class AccountMappings:
    """Maps the subjects of what clients publish, once: a result is not mapped again."""

    __slots__ = ("_draw", "_known", "_sources", "rules")

    def __init__(
        self,
        rules: Sequence[SubjectMapping],
        cluster: str = "",
        draw: Callable[[int], int] = randrange,
    ) -> None:
        self.rules = tuple(rules)
        self._sources = [_Source(rule, cluster) for rule in rules]
        self._draw = draw
        self._known: dict[bytes, _Source | None] = {}

    def concern(self, subject: bytes) -> bool:
        return self._source(subject) is not None

    def subject(self, subject: bytes) -> bytes:
        """Where a message with this subject goes; NOWHERE when it is dropped."""
        return self.subjects(subject, 1)[0]

    def subjects(self, subject: bytes, count: int) -> list[bytes]:
        """The same for `count` messages: weights are drawn for each of them."""
        source = self._source(subject)
        if source is None:
            return [subject] * count
        if source.fixed:
            return [source.mapped(subject, self._draw)] * count
        return [source.mapped(subject, self._draw) for _ in range(count)]

    def _source(self, subject: bytes) -> _Source | None:
        known = self._known
        try:
            return known[subject]
        except KeyError:
            if len(known) >= _SUBJECTS_MAX:
                known.clear()
            found = next((one for one in self._sources if matches(subject, one.subject)), None)
            if len(subject) <= _SUBJECT_BYTES_MAX:
                known[subject] = found
            return found
