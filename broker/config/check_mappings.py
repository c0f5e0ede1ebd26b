"""Checks of subject mappings, from files and from JWTs alike.

Owns: the rules for sources, weights and duplicates.
May not touch: the grammar of a destination (broker/subjects/mapping.py).
Spec: NATS subject mapping; the weights of one source and cluster are at most 100 %."""

from __future__ import annotations

from collections import Counter

from broker.config.options import ALWAYS, SubjectMapping
from broker.subjects import valid_subject
from broker.subjects.mapping import BadMapping, Mapping


def check_mapping(rule: SubjectMapping) -> None:
    """Raises BadMapping."""
    if not valid_subject(rule.source.encode(), wildcards=True):
        raise BadMapping(f'Subject "{rule.source}" is not a valid subject')
    for one in rule.destinations:
        try:
            Mapping(rule.source, one.subject)
        except BadMapping as bad:
            raise _unusable(rule, str(bad), to=one.subject) from bad
    weights: Counter[str] = Counter()
    seen = set()
    for one in rule.destinations:
        weights[one.cluster] += one.weight
        if weights[one.cluster] > ALWAYS:
            raise _unusable(rule, "total weight needs to be <= 100")
        if (one.cluster, one.subject) in seen:
            raise _unusable(rule, f'duplicate entry for "{one.subject}"')
        seen.add((one.cluster, one.subject))


def _unusable(rule: SubjectMapping, reason: str, *, to: str = "") -> BadMapping:
    where = f'"{rule.source}" to "{to}"' if to else f'"{rule.source}"'
    return BadMapping(f"Error adding mapping for {where} : {reason}")
