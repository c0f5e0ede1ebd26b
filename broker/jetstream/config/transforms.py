"""Subject transforms of streams: whether one is valid, and its mapping.

Owns: the rule that an empty destination keeps subjects unchanged, and the bound on the parts that a
destination may repeat: every replica applies it to every message.
May not touch: the grammar and the mapping itself (broker/subjects/mapping.py).
Spec: NATS ADR-30, subject transforms."""

from __future__ import annotations

from typing import Final

from broker.jetstream.config.stream_config import Republish, SubjectTransform
from broker.subjects.mapping import BadMapping, Mapping

DESTINATION_BYTES_MAX: Final = 4096
PARTS_MAX: Final = 16  # parts of a subject that a destination repeats or hashes


def mapping_problem(src: str, dest: str) -> str | None:
    """What is wrong with mapping `src` to `dest`, or None."""
    if not dest:
        return None
    if len(dest.encode()) > DESTINATION_BYTES_MAX:
        return f"transform destination is longer than {DESTINATION_BYTES_MAX} bytes"
    try:
        mapping = Mapping(src, dest)
    except BadMapping as problem:
        return str(problem)
    if mapping.parts > PARTS_MAX:
        return f"transform destination repeats more than {PARTS_MAX} parts of a subject"
    return None


def mapping_of(transform: SubjectTransform | Republish | None) -> Mapping | None:
    """The mapping of a valid configuration; None if it leaves subjects unchanged."""
    if transform is None or not transform.dest:
        return None
    return Mapping(transform.src, transform.dest)
