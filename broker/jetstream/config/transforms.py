"""Subject transforms of streams: whether one is valid, and its mapping.

Owns: the rule that an empty destination keeps subjects unchanged.
May not touch: the grammar and the mapping itself (broker/subjects/mapping.py).
Spec: NATS ADR-30, subject transforms."""

from __future__ import annotations

from broker.jetstream.config.stream_config import Republish, SubjectTransform
from broker.subjects.mapping import BadMapping, Mapping


def mapping_problem(src: str, dest: str) -> str | None:
    """What is wrong with mapping `src` to `dest`, or None."""
    if not dest:
        return None
    try:
        Mapping(src, dest)
    except BadMapping as problem:
        return str(problem)
    return None


def mapping_of(transform: SubjectTransform | Republish | None) -> Mapping | None:
    """The mapping of a valid configuration; None if it leaves subjects unchanged."""
    if transform is None or not transform.dest:
        return None
    return Mapping(transform.src, transform.dest)
