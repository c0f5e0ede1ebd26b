"""Offsets of a streaming query, and how a range is cut into partitions.

Owns: the offset as it is in Spark's checkpoint, and the cut of a range. Both are pure functions: a
batch that Spark replays has the same rows in the same partitions, whichever replicas are alive.
May not touch: sockets, Spark's classes, the clock.
Spec: an offset is {"v":1,"stream","id","next"}, keys in this order (Spark compares the text);
`next` is the first sequence not yet read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from broker.scan.client import ReplicaAddress, ScanRange, parse_endpoint
from broker.scan.protocol import PlanReplica, ScanPlan
from broker.spark.options import ReadFrom, SourceOptions

OFFSET_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Offset:
    stream: str
    id: str
    next: int

    def to_json(self) -> dict[str, Any]:
        return {"v": OFFSET_VERSION, "stream": self.stream, "id": self.id, "next": self.next}


class OffsetError(ValueError):
    """The checkpoint was not written by this source, or belongs to another stream."""


def parse_offset(document: Mapping[str, Any], *, stream: str) -> Offset:
    try:
        version, offset = document["v"], Offset(
            str(document["stream"]), str(document["id"]), int(document["next"])
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise OffsetError(f"{document!r} is not an offset of a jetraft source") from error
    if version != OFFSET_VERSION:
        raise OffsetError(f"the offset has version {version}; this source reads {OFFSET_VERSION}")
    if offset.stream != stream:
        raise OffsetError(
            f"the checkpoint is of stream {offset.stream}, not {stream}: use another "
            "checkpointLocation"
        )
    return offset


def cut(first: int, behind: int, *, min_partitions: int, max_records: int) -> list[tuple[int, int]]:
    """[first, behind) as consecutive (first, last) ranges, both included, none empty."""
    rows = behind - first
    if rows <= 0:
        return []
    pieces = min(max(min_partitions, -(-rows // max_records)), rows)
    edges = [first + rows * k // pieces for k in range(pieces + 1)]
    return [(low, high - 1) for low, high in pairwise(edges)]


def ranges(plan: ScanPlan, options: SourceOptions, *, first: int, behind: int) -> list[ScanRange]:
    """The partitions of [first, behind), each with the replicas to ask in order."""
    pieces = cut(
        first,
        behind,
        min_partitions=options.min_partitions,
        max_records=options.max_records_per_partition,
    )
    return [
        ScanRange(
            stream=plan.stream,
            id=plan.id,
            first=low,
            last=high,
            endpoints=preferred(
                plan.replicas,
                last=high,
                turn=turn,
                read_from=options.read_from,
                fallback=options.servers,
            ),
            subjects=options.subjects,
        )
        for turn, (low, high) in enumerate(pieces)
    ]


def preferred(
    replicas: Sequence[PlanReplica],
    *,
    last: int,
    turn: int,
    read_from: ReadFrom,
    fallback: Sequence[ReplicaAddress],
) -> tuple[ReplicaAddress, ...]:
    """Replicas in the order in which to try them; `turn` makes partitions start at different ones.

    The servers of the user come last, for the case that no advertised address is reachable; a
    node without a replica only answers that it has none."""
    followers = [r for r in replicas if not r.leader and r.applied_seq >= last]
    lagging = [r for r in replicas if not r.leader and r.applied_seq < last]
    leaders = [r for r in replicas if r.leader]
    match read_from:
        case ReadFrom.FOLLOWER:
            ordered = rotated(followers, turn) + lagging + leaders
        case ReadFrom.ANY:
            ordered = rotated(followers + leaders, turn) + lagging
        case ReadFrom.LEADER:
            ordered = leaders + followers + lagging
    addresses = [parse_endpoint(replica.address) for replica in ordered]
    return tuple(dict.fromkeys([*addresses, *fallback]))


def rotated(replicas: list[PlanReplica], turn: int) -> list[PlanReplica]:
    start = turn % len(replicas) if replicas else 0
    return replicas[start:] + replicas[:start]
