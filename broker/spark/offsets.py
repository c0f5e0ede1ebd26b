"""Offsets of a streaming query, and how a range is cut into partitions.

Owns: the offset as it is in Spark's checkpoint, and the cut of a range. Both are pure functions: a
batch that Spark replays has the same rows in the same partitions, whichever replicas are alive.
May not touch: sockets, Spark's classes, the clock.
Spec: an offset of one stream is {"v":1,"stream","id","next"}, one of several is
{"v":2,"streams":{name:{"id","next"}}}, keys in this order and names sorted (Spark compares the
text). `next` is the first sequence not yet read. `cuts`, where there are any, are the sequences at
which the batch that ends here was cut by bytes: a replay cuts it in the same places."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from broker.scan.client import ReplicaAddress, ScanRange, parse_endpoint
from broker.scan.protocol import PlanReplica, ScanPlan
from broker.spark.options import ReadFrom, SourceOptions

ONE_STREAM: Final = 1
SEVERAL_STREAMS: Final = 2


@dataclass(frozen=True, slots=True)
class Offset:
    """The position in one stream."""

    stream: str
    id: str
    next: int
    cuts: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"v": ONE_STREAM, "stream": self.stream, **self.position()}

    def position(self) -> dict[str, Any]:
        cuts = {"cuts": list(self.cuts)} if self.cuts else {}
        return {"id": self.id, "next": self.next, **cuts}


Offsets = dict[str, Offset]  # by stream, sorted


class OffsetError(ValueError):
    """The checkpoint was not written by this source, or belongs to another stream."""


def offsets_json(offsets: Offsets, *, single: bool) -> dict[str, Any]:
    if single:
        return next(iter(offsets.values())).to_json()
    positions = {name: offsets[name].position() for name in sorted(offsets)}
    return {"v": SEVERAL_STREAMS, "streams": positions}


def parse_offsets(document: Mapping[str, Any], options: SourceOptions) -> Offsets:
    """Raises OffsetError."""
    version = document.get("v")
    if version not in (ONE_STREAM, SEVERAL_STREAMS):
        if "v" not in document:
            raise OffsetError(f"{document!r} is not an offset of a jetraft source")
        raise OffsetError(f"the offset has version {version}; this source reads 1 and 2")
    try:
        if version == ONE_STREAM:
            found = [_offset(str(document["stream"]), document)]
        else:
            found = [_offset(name, position) for name, position in document["streams"].items()]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise OffsetError(f"{document!r} is not an offset of a jetraft source") from error
    others = [offset.stream for offset in found if offset.stream not in options.streams]
    if others and not options.pattern:
        raise OffsetError(
            f"the checkpoint is of stream {others[0]}, not {', '.join(options.streams)}: use "
            "another checkpointLocation"
        )
    return {offset.stream: offset for offset in sorted(found, key=lambda o: o.stream)}


def _offset(stream: str, position: Mapping[str, Any]) -> Offset:
    cuts = tuple(int(cut) for cut in position.get("cuts", ()))
    return Offset(stream, str(position["id"]), int(position["next"]), cuts)


def cut(
    first: int, behind: int, *, min_partitions: int, max_records: int, cuts: Iterable[int] = ()
) -> list[tuple[int, int]]:
    """[first, behind) as consecutive (first, last) ranges, both included, none empty."""
    total = behind - first
    found: list[tuple[int, int]] = []
    corners = [first, *(at for at in cuts if first < at < behind), behind]
    for low, high in pairwise(corners):
        rows = high - low
        if rows <= 0:
            continue
        share = -(-min_partitions * rows // total)
        pieces = min(max(share, -(-rows // max_records)), rows)
        edges = [low + rows * k // pieces for k in range(pieces + 1)]
        found += [(start, stop - 1) for start, stop in pairwise(edges)]
    return found


def ranges(
    plan: ScanPlan,
    options: SourceOptions,
    *,
    first: int,
    behind: int,
    cuts: Iterable[int] = (),
    subjects: tuple[str, ...] = (),
    columns: tuple[str, ...] = (),
) -> list[ScanRange]:
    """The partitions of [first, behind), each with the replicas to ask in order."""
    pieces = cut(
        first,
        behind,
        min_partitions=-(-options.min_partitions // max(len(options.streams), 1)),
        max_records=options.max_records_per_partition,
        cuts=cuts,
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
            subjects=subjects or options.subjects,
            columns=columns,
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
