"""A streaming query: where each batch begins and ends, and what was lost in between.

Owns: Spark's side of the contract for readStream: offsets, admission, pinning of the start.
May not touch: the server. It asks for plans; tasks read the ranges.
The reader stays in one driver-side process as long as the query runs.
Spec: Spark 4 Python Data Source API; docs/spark.md."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from broker.scan.acknowledge import CommitConsumer
from broker.scan.arrow import stored_columns
from broker.scan.client import NoServer
from broker.scan.protocol import PlanRefused, ScanPlan, same_incarnation
from broker.spark.offsets import Offset, Offsets, offsets_json, parse_offsets, ranges
from broker.spark.options import Edge, SourceOptions
from broker.spark.planning import QueryPlanner, is_unknown, report_loss
from broker.spark.tasks import ColumnNames, RangePartition, read_partition

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("jetraft.spark")

# With the default trigger, Spark asks for the latest offset some forty times a second. Where there
# is nothing new, the answer waits: Spark's part of each question costs milliseconds of CPU. The
# leader of a single stream waits; of several streams, each is asked again after a step.
IDLE_WAIT_S: Final = 1.0
IDLE_STEP_S: Final = 0.05
NAMES_EVERY_S: Final = 5.0  # how often streams of a pattern are listed anew


class StreamReplacedError(RuntimeError):
    """The stream was deleted, and perhaps created again, after the checkpoint was written."""


class JetRaftStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(
        self,
        options: SourceOptions,
        names: ColumnNames,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._names = names
        self._clock = clock
        self._pause = pause
        self._planner = QueryPlanner(options)
        # Spark does not tell a Python source the name of its query.
        self._reader = options.reader or f"{socket.gethostname()}:{os.getpid()}"
        self._streams: tuple[str, ...] = ()
        self._listed_at = 0.0
        self._initial: Offsets | None = None
        self._pinned = False
        self._target: dict[str, int] | None = None  # AvailableNow: stop here
        self._consumers: dict[str, CommitConsumer] = {}
        self._acknowledged: Offsets = {}
        self._latest: Offsets = {}  # for the progress of the query
        self._batch_at: float | None = None  # when the last batch with rows was planned

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_planner": QueryPlanner(self._options), "_consumers": {}}

    def initialOffset(self) -> dict[str, Any]:
        """Called twice for a new query; both calls must return the same (see latestOffset)."""
        if self._initial is None:
            default = Edge.EARLIEST if self._options.ack_consumer else Edge.LATEST
            found = [(name, *self._planner.first(name, default)) for name in self._names_now()]
            for _, plan, _ in found if self._options.ack_consumer else ():
                self._acking(plan)
            self._initial = {name: Offset(name, plan.id, first) for name, plan, first in found}
        return self._json(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.max_records_per_trigger is not None:
            return ReadMaxRows(options.max_records_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        plans = {name: self._planner.plan(name) for name in self._names_now()}
        self._target = {name: plan.last_seq + 1 for name, plan in plans.items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Spark stores only the end of a batch. The first batch of a new query is therefore empty:
        it writes the starting point to the checkpoint, so that a crash cannot move it."""
        begin = parse_offsets(start, self._options)
        if not self._pinned:
            self._pinned = True
            if self._initial == begin:
                return start
        # Spark ends a batch before it asks for the next one, but does not tell of the last batch of
        # a query that ends: it is acknowledged when the query runs again.
        self._acknowledge(begin)
        waits_until = self._clock() + (IDLE_WAIT_S if self._target is None else 0.0)
        while True:
            left_s = waits_until - self._clock() if self._options.is_single else 0.0
            end = self._latest_from(begin, limit, wait_s=max(left_s, 0.0))
            if end != begin or self._clock() >= waits_until:
                break
            self._pause(IDLE_STEP_S * max(len(begin), 1))
        if end == begin:
            return start
        self._batch_at = self._clock()
        return self._json(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The ends of the streams, for the progress of the query: its lag is the difference."""
        return self._json(self._latest) if self._latest else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, finish = parse_offsets(start, self._options), parse_offsets(end, self._options)
        found: list[InputPartition] = []
        for name, until in finish.items():
            since = begin.get(name, until)  # a new stream is read from the next batch on
            if since.id != until.id or since.next < until.next:
                found += self._partitions_of(since, until)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._options, self._names)

    def commit(self, end: dict[str, Any]) -> None:
        """Offsets live in Spark's checkpoint, and the stream keeps its messages, unless a consumer
        acknowledges them. What cannot be acknowledged now is with the next batch."""
        self._acknowledge(parse_offsets(end, self._options))

    def stop(self) -> None:
        self._planner.close()

    # -- private ----------------------------------------------------------------------------------

    def _acknowledge(self, done: Offsets) -> None:
        if not self._options.ack_consumer:
            return
        for offset in done.values():
            if self._acknowledged.get(offset.stream) == offset:
                continue
            plan = self._plan_of(offset.stream)
            if plan is None or not same_incarnation(plan.id, offset.id):
                continue
            try:
                self._acking(plan).acknowledge(offset.next)
                self._acknowledged[offset.stream] = offset
            except NoServer as nobody:
                logger.warning("stream %s: acknowledged later: %s", offset.stream, nobody)

    def _acking(self, plan: ScanPlan) -> CommitConsumer:
        """The consumer of the option ackConsumer; it is created where it is missing."""
        if plan.stream not in self._consumers:
            cluster = self._planner.cluster
            found = CommitConsumer(cluster, plan.stream, self._options.ack_consumer)
            found.ensure(plan.retention)
            self._consumers[plan.stream] = found
        return self._consumers[plan.stream]

    def _json(self, offsets: Offsets) -> dict[str, Any]:
        return offsets_json(offsets, single=self._options.is_single)

    def _names_now(self) -> tuple[str, ...]:
        """AvailableNow reads the streams that were there when it began."""
        stale = self._clock() - self._listed_at >= NAMES_EVERY_S and self._target is None
        if not self._streams or (self._options.pattern and stale):
            self._streams = self._planner.streams()
            self._listed_at = self._clock()
        return self._streams

    def _latest_from(self, begin: Offsets, limit: ReadLimit, *, wait_s: float) -> Offsets:
        """What the next batch ends with; the same as `begin` if there is nothing to read. A stream
        that is new begins with this batch and is read from the next one on: so its start is in
        the checkpoint."""
        end: Offsets = {}
        backlog: list[tuple[ScanPlan, Offset, int]] = []
        for name in sorted({*begin, *self._names_now()}):
            at = begin[name].next if name in begin else 0
            plan = self._plan_of(name, at=at, wait_s=wait_s)
            if plan is None:
                self._lost_stream(begin[name])
                continue
            behind = plan.last_seq + 1
            self._latest[name] = Offset(name, plan.id, behind)
            if name not in begin:
                end[name] = Offset(name, plan.id, plan.first_seq)
                continue
            since = end[name] = self._same_incarnation(begin[name], plan)
            if self._target is not None:
                behind = min(behind, self._target.get(name, 0))
            if behind > since.next:
                backlog.append((plan, since, behind - since.next))
        total = sum(rows for _, _, rows in backlog)
        if not self._waits_for_more(total):
            for plan, since, rows in backlog:
                behind = since.next + rows
                behind = min(behind, self._behind(plan, since.next, rows, total, limit))
                cuts = self._planner.cuts(plan, first=since.next, behind=behind)
                end[plan.stream] = replace(since, next=behind, cuts=cuts)
        return end

    def _behind(self, plan: ScanPlan, first: int, rows: int, total: int, limit: ReadLimit) -> int:
        """The end of this stream's part of a batch: several streams share it by their backlog."""
        behind = plan.last_seq + 1
        if isinstance(limit, ReadAllAvailable):
            return behind
        options = self._options
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else options.max_records_per_trigger
        if most is not None:
            behind = min(behind, first + max(most * rows // total, 1))
        size = options.max_bytes_per_trigger
        if isinstance(limit, ReadMaxBytes):
            size = limit.max_bytes
        if size is not None:
            share = max(size * rows // total, 1)
            behind = min(behind, self._planner.within(plan, first=first, size=share))
        return behind

    def _waits_for_more(self, total: int) -> bool:
        least = self._options.min_records_per_trigger
        if not total or least is None or total >= least or self._target is not None:
            return False
        if self._batch_at is None:
            self._batch_at = self._clock()
        return self._clock() - self._batch_at < self._options.max_trigger_delay_s

    def _partitions_of(self, since: Offset, until: Offset) -> list[InputPartition]:
        options = self._options
        plan = self._plan_of(until.stream)
        if plan is None:
            self._lost_stream(until)
            return []
        begin = self._same_incarnation(since, plan)
        if not same_incarnation(plan.id, until.id):
            begin = replace(begin, next=until.next)  # the rest of the old stream was deleted
        # cut the whole range, even if its head is lost: a replay must not depend on retention
        found = ranges(
            plan,
            options,
            first=begin.next,
            behind=until.next,
            cuts=until.cuts,
            columns=stored_columns(self._names.stored),
        )
        if found and plan.first_seq > begin.next:
            report_loss(options, plan.stream, begin.next, min(plan.first_seq, until.next) - 1)
        return [RangePartition(r) for r in found if r.last >= plan.first_seq]

    def _plan_of(self, stream: str, at: int = 0, *, wait_s: float = 0.0) -> ScanPlan | None:
        """None: a stream of the pattern that is gone."""
        try:
            reader = self._reader if at else ""
            return self._planner.plan(stream, reader=reader, at=at, wait_s=wait_s)
        except PlanRefused as refusal:
            if self._options.pattern and is_unknown(refusal):
                return None
            raise

    def _lost_stream(self, offset: Offset) -> None:
        text = f"stream {offset.stream} was deleted since the last batch"
        if self._options.fail_on_data_loss:
            raise StreamReplacedError(f"{text}. Set failOnDataLoss=false to continue without it")
        logger.warning("%s; continuing without it", text)

    def _same_incarnation(self, offset: Offset, plan: ScanPlan) -> Offset:
        if same_incarnation(plan.id, offset.id):
            return offset
        text = f"stream {offset.stream} was deleted and created again since the last batch"
        if self._options.fail_on_data_loss:
            raise StreamReplacedError(f"{text}. Set failOnDataLoss=false to read the new one")
        logger.warning("%s; reading the new one from its first message", text)
        return Offset(plan.stream, plan.id, plan.first_seq)
