"""The subject transforms of streams: whether one is well formed, and the mapping it means.

Owns: an empty destination keeps subjects as they are.
May not touch: the grammar and the mapping itself (broker.subjects.mapping).
Spec: ADR-30 subject transforms; JetStream sheet 2.2."""

from __future__ import annotations

from broker.jetstream.config.stream_config import Republish, SubjectTransform
from broker.subjects.mapping import BadMapping, Mapping


def mapping_problem(src: str, dest: str) -> str | None:
    """What is wrong with mapping `src` to `dest`, or None. An empty destination keeps subjects."""
    if not dest:
        return None
    try:
        Mapping(src, dest)
    except BadMapping as problem:
        return str(problem)
    return None


def mapping_of(transform: SubjectTransform | Republish | None) -> Mapping | None:
    """Of a configuration that was checked; None when it changes nothing."""
    if transform is None or not transform.dest:
        return None
    return Mapping(transform.src, transform.dest)
