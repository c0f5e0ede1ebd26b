"""Where to cut a range of a stream so that each piece has about the same number of bytes.

Owns: the walk over the sizes of segments.
May not touch: blocks. The bytes of a segment are assumed to be spread evenly over its sequences.
Spec: broker/scan/protocol.py, PlanRequest."""

from __future__ import annotations

from broker.scan.protocol import EDGES_MAX
from broker.store.segments import Segments
from broker.subjects import Steps

STEP_EDGES = 512


def edges(
    segments: Segments, *, first: int, behind: int, piece_bytes: int
) -> Steps[tuple[int, ...]]:
    """The sequences, ascending and inside the range, at which a new piece begins. If there are too
    many, the last piece gets the rest."""
    found: list[int] = []
    room = piece_bytes
    for segment in segments.from_seq(first):
        low, high = max(segment.first_seq, first), min(segment.last_seq + 1, behind)
        if low >= high:
            if segment.first_seq >= behind:
                break
            continue
        width = segment.last_seq + 1 - segment.first_seq
        while segment.live_size * (high - low) >= room * width:
            # a piece has at least one message, however large it is
            cut = max(low + room * width // max(segment.live_size, 1), (found or [first])[-1] + 1)
            if cut >= high:
                break
            found.append(cut)
            if len(found) == EDGES_MAX:
                return tuple(found)
            if not len(found) % STEP_EDGES:
                yield
            low, room = cut, piece_bytes
        room = max(room - segment.live_size * (high - low) // width, 0)
    return tuple(found)
