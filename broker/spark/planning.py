"""From options and filters to ranges: what the driver asks the cluster before a query reads.

Owns: which streams a query reads, where it begins and ends in each, and the loss of messages that
is known before reading.
May not touch: Spark's classes, blocks.
Spec: docs/spark.md. A time becomes a sequence when a plan is made: times of a stream only rise."""

from __future__ import annotations

import fnmatch
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from broker.scan.client import DataLost, Planner, ScanRange
from broker.scan.protocol import PlanRefused, PlanRequest, ScanPlan
from broker.spark.offsets import ranges
from broker.spark.option_values import OptionError
from broker.spark.options import (
    DEFAULT_BYTES_PER_PARTITION,
    DEFAULT_RECORDS_PER_PARTITION,
    Bound,
    Edge,
    OffsetBounds,
    SourceOptions,
)
from broker.spark.pushdown import Narrowed

logger = logging.getLogger("jetraft.spark")

LARGE_COLUMNS: Final = frozenset({"headers", "data"})  # without them the number of rows decides
SPARSE_TIMES_MAX: Final = 16  # as large partitions, where hardly a message is read


@dataclass(slots=True)
class QueryPlanner:
    """The plans of one query. The connection is kept until `close`."""

    options: SourceOptions
    _planner: Planner | None = field(default=None)

    @property
    def cluster(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(self.options.servers, self.options.login)
        return self._planner

    def close(self) -> None:
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    def streams(self) -> tuple[str, ...]:
        """Raises OptionError if a pattern matches none."""
        pattern = self.options.pattern
        if not pattern:
            return self.options.streams
        names = sorted(n for n in self.cluster.names() if fnmatch.fnmatchcase(n, pattern))
        if not names:
            raise OptionError(f"streamPattern: no stream matches {pattern!r}")
        return tuple(names)

    def plan(
        self,
        stream: str,
        times: Iterable[int] = (),
        *,
        subjects: tuple[str, ...] = (),
        reader: str = "",
        at: int = 0,
        wait_s: float = 0.0,
    ) -> ScanPlan:
        """`reader` tells the leader that it is at this sequence, and that it waits so long for a
        message there. Raises PlanRefused, NoServer or LoginRefused."""
        wait_ms = int(1000 * min(wait_s, self.options.login.read_timeout_s / 2))
        request = PlanRequest(
            times=tuple(times), subjects=subjects, reader=reader, next=at, wait_ms=wait_ms
        )
        return self.cluster.plan(stream, request)

    def first(self, stream: str, default: Edge) -> tuple[ScanPlan, int]:
        """The plan, and where a query begins."""
        starting = self.options.starting
        plan = self.plan(stream, () if starting.time_ns is None else (starting.time_ns,))
        if starting.time_ns is not None:
            return plan, plan.seqs[0]
        return plan, first_to_read(starting.of(stream, default), plan, self.options)

    def cuts(self, plan: ScanPlan, *, first: int, behind: int, piece: int = 0) -> tuple[int, ...]:
        """Where to cut by bytes. Not asked for if all of the stream fits into one partition."""
        piece = piece or self.options.max_bytes_per_partition
        if plan.bytes <= piece or behind <= first:
            return ()
        request = PlanRequest(piece_bytes=piece, first=first, behind=behind)
        return self.cluster.plan(plan.stream, request).edges

    def within(self, plan: ScanPlan, *, first: int, size: int) -> int:
        """The sequence behind about so many bytes, at least one message."""
        behind = plan.last_seq + 1
        request = PlanRequest(piece_bytes=size, first=first, behind=behind)
        edges = self.cluster.plan(plan.stream, request).edges
        return edges[0] if edges else behind

    def batch(self, narrowed: Narrowed, columns: tuple[str, ...]) -> list[ScanRange]:
        """The partitions of a batch query."""
        found: list[ScanRange] = []
        for stream in self.streams():
            if narrowed.streams is None or stream in narrowed.streams:
                found += self._batch_of(stream, narrowed, columns)
        return found

    def _batch_of(
        self, stream: str, narrowed: Narrowed, columns: tuple[str, ...]
    ) -> list[ScanRange]:
        options = self.options
        subjects = narrowed.subjects or options.subjects
        bounds = (options.starting.time_ns, options.ending.time_ns)
        asked = [t for t in (*bounds, narrowed.first_ns, narrowed.behind_ns) if t is not None]
        plan = self.plan(stream, asked, subjects=subjects)
        options = sized_for(options, plan)
        at = dict(zip(asked, plan.seqs, strict=True))
        if bounds[0] is not None:
            first = at[bounds[0]]
        else:
            first = first_to_read(options.starting.of(stream, Edge.EARLIEST), plan, options)
        behind = plan.last_seq + 1
        if bounds[1] is not None:
            behind = at[bounds[1]]
        behind = min(behind, _ending(options.ending, stream, behind))
        first = max(first, narrowed.first_seq, at.get(narrowed.first_ns or -1, 1))
        if narrowed.behind_seq is not None:
            behind = min(behind, narrowed.behind_seq)
        if narrowed.behind_ns is not None:
            behind = min(behind, at[narrowed.behind_ns])
        cuts: tuple[int, ...] = ()
        if not columns or not LARGE_COLUMNS.isdisjoint(columns):
            piece = options.max_bytes_per_partition
            cuts = self.cuts(plan, first=first, behind=behind, piece=piece)
        return ranges(
            plan,
            options,
            first=first,
            behind=behind,
            cuts=cuts,
            subjects=narrowed.subjects,
            columns=columns,
        )


def sized_for(options: SourceOptions, plan: ScanPlan) -> SourceOptions:
    """With larger partitions, if few messages are on the subjects that are read: each costs Spark
    a task, and brokers only skip the others. Sizes that the user has chosen stay."""
    if plan.matching < 0:
        return options
    times = min(plan.messages // max(plan.matching, 1), SPARSE_TIMES_MAX)
    records, size = options.max_records_per_partition, options.max_bytes_per_partition
    if times < 2 or (records, size) != (DEFAULT_RECORDS_PER_PARTITION, DEFAULT_BYTES_PER_PARTITION):
        return options
    return replace(
        options,
        max_records_per_partition=records * times,
        max_bytes_per_partition=size * times,
    )


def _ending(ending: OffsetBounds, stream: str, latest: int) -> int:
    bound = ending.of(stream, Edge.LATEST)
    return bound if isinstance(bound, int) else latest


def first_to_read(starting: Bound, plan: ScanPlan, options: SourceOptions) -> int:
    match starting:
        case Edge.EARLIEST:
            return plan.first_seq
        case Edge.LATEST:
            return plan.last_seq + 1
    if starting > plan.last_seq + 1:
        raise OptionError(
            f"startingOffsets is {starting}, but stream {plan.stream} ends at {plan.last_seq}: "
            "set it to at most the sequence after that, or to latest"
        )
    if starting < plan.first_seq:
        report_loss(options, plan.stream, starting, plan.first_seq - 1)
        return plan.first_seq
    return starting


def report_loss(options: SourceOptions, stream: str, first: int, last: int) -> None:
    lost = DataLost(stream, first, last)
    if options.fail_on_data_loss:
        raise lost
    logger.warning("%s (as configured)", lost)


def is_unknown(refusal: PlanRefused) -> bool:
    """Whether there is no such stream."""
    return refusal.code == 404
