"""format("jetraft"): a stream as a Spark table, in batch and streaming queries.

Owns: Spark's side of the contract: schema, planning on the driver, reading in the tasks, offsets.
May not touch: the server. It imports the scan client only.
Objects here are pickled and sent to Spark's workers, so they hold no sockets or locks; connections
are opened where they are used.
Spec: Spark 4 Python Data Source API; docs/spark.md."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from broker.scan.arrow import DEFAULT_COLUMNS, arrow_schema, batch_of
from broker.scan.client import DataLost, Planner, ScanRange, read_range
from broker.scan.protocol import ScanPlan
from broker.spark.offsets import Offset, parse_offset, ranges
from broker.spark.options import Bound, Edge, IncludeHeaders, SourceOptions, parse_options

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("jetraft.spark")

COLUMN_TYPES: Final[dict[str, DataType]] = {
    "seq": LongType(),
    "subject": StringType(),
    "time": TimestampType(),
    "headers": BinaryType(),
    "data": BinaryType(),
    "time_ns": LongType(),
    "stream": StringType(),
}


class SchemaError(ValueError):
    """The schema of the user has a column or type that messages do not have."""


class JetRaftDataSource(DataSource):
    """The class behind `spark.read.format("jetraft")`, on the driver."""

    @classmethod
    def name(cls) -> str:
        return "jetraft"

    def schema(self) -> StructType:
        with_headers = parse_options(self.options).include_headers is not IncludeHeaders.NONE
        names = [name for name in DEFAULT_COLUMNS if with_headers or name != "headers"]
        return StructType([StructField(name, COLUMN_TYPES[name]) for name in names])

    def reader(self, schema: StructType) -> JetRaftReader:
        return JetRaftReader(parse_options(self.options), column_names(schema))

    def streamReader(self, schema: StructType) -> JetRaftStreamReader:
        return JetRaftStreamReader(parse_options(self.options), column_names(schema))


class RangePartition(InputPartition):
    def __init__(self, wanted: ScanRange) -> None:
        super().__init__(wanted)
        self.wanted = wanted


class JetRaftReader(DataSourceReader):
    """One batch query: the range is fixed when Spark plans it."""

    def __init__(self, options: SourceOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        planner = Planner(options.servers, options.login)
        try:
            plan = planner.plan(options.stream)
        finally:
            planner.close()
        first = first_to_read(options.starting or Edge.EARLIEST, plan, options)
        behind = plan.last_seq + 1
        if isinstance(options.ending, int):
            behind = min(options.ending, behind)
        return [RangePartition(r) for r in ranges(plan, options, first=first, behind=behind)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._options, self._names)


class JetRaftStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query. It stays in one driver-side process as long as the query runs."""

    def __init__(self, options: SourceOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        self._planner: Planner | None = None
        self._initial: Offset | None = None
        self._pinned = False
        self._target: int | None = None  # AvailableNow: stop here

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_planner": None}

    def initialOffset(self) -> dict[str, Any]:
        """Called twice for a new query; both calls must return the same (see latestOffset)."""
        if self._initial is None:
            plan = self._plan()
            first = first_to_read(self._options.starting or Edge.LATEST, plan, self._options)
            self._initial = Offset(plan.stream, plan.id, first)
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_records_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._plan().last_seq + 1

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Spark stores only the end of a batch. The first batch of a new query is therefore empty:
        it writes the starting point to the checkpoint, so that a crash cannot move it."""
        begin = parse_offset(start, stream=self._options.stream)
        if not self._pinned:
            self._pinned = True
            if self._initial == begin:
                return begin.to_json()
        plan = self._plan()
        begin = self._same_incarnation(begin, plan)
        behind = plan.last_seq + 1
        if self._target is not None:
            behind = min(behind, self._target)
        if isinstance(limit, ReadMaxRows):
            behind = min(behind, begin.next + limit.max_rows)
        return replace(begin, next=max(behind, begin.next)).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        options = self._options
        begin = parse_offset(start, stream=options.stream)
        finish = parse_offset(end, stream=options.stream)
        if begin.id == finish.id and begin.next >= finish.next:
            return []
        plan = self._plan()
        begin = self._same_incarnation(begin, plan)
        if plan.id != finish.id:
            begin = replace(begin, next=finish.next)  # the rest of the old stream was deleted
        # cut the whole range, even if its head is lost: a replay must not depend on retention
        found = ranges(plan, options, first=begin.next, behind=finish.next)
        if found and plan.first_seq > begin.next:
            report_loss(options, begin.next, min(plan.first_seq, finish.next) - 1)
        return [RangePartition(r) for r in found if r.last >= plan.first_seq]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._options, self._names)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to release: offsets live in Spark's checkpoint, the stream keeps its messages."""

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()

    def _plan(self) -> ScanPlan:
        if self._planner is None:
            self._planner = Planner(self._options.servers, self._options.login)
        return self._planner.plan(self._options.stream)

    def _same_incarnation(self, offset: Offset, plan: ScanPlan) -> Offset:
        if plan.id == offset.id:
            return offset
        text = f"stream {offset.stream} was deleted and created again since the last batch"
        if self._options.fail_on_data_loss:
            raise StreamReplacedError(f"{text}. Set failOnDataLoss=false to read the new one")
        logger.warning("%s; reading the new one from its first message", text)
        return Offset(plan.stream, plan.id, plan.first_seq)


class StreamReplacedError(RuntimeError):
    """The stream was deleted and created again after the checkpoint was written."""


def column_names(schema: StructType) -> tuple[str, ...]:
    """The columns to read, in the order of the schema that the user gave."""
    for column in schema.fields:
        expected = COLUMN_TYPES.get(column.name)
        if expected is None:
            raise SchemaError(f"no column {column.name!r}; choose from {', '.join(COLUMN_TYPES)}")
        if column.dataType != expected:
            raise SchemaError(f"column {column.name} is a {expected.simpleString()}")
    return tuple(column.name for column in schema.fields)


def first_to_read(starting: Bound, plan: ScanPlan, options: SourceOptions) -> int:
    match starting:
        case Edge.EARLIEST:
            return plan.first_seq
        case Edge.LATEST:
            return plan.last_seq + 1
    if starting < plan.first_seq:
        report_loss(options, starting, plan.first_seq - 1)
        return plan.first_seq
    return starting


def report_loss(options: SourceOptions, first: int, last: int) -> None:
    lost = DataLost(options.stream, first, last)
    if options.fail_on_data_loss:
        raise lost
    logger.warning("%s (as configured)", lost)


def read_partition(
    partition: InputPartition, options: SourceOptions, names: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Runs in a task. Spark passes an empty partition if the plan has none."""
    wanted = getattr(partition, "wanted", None)
    if not isinstance(wanted, ScanRange):
        return
    schema = arrow_schema(names)
    slices = read_range(
        near_first(wanted),
        options.login,
        fail_on_data_loss=options.fail_on_data_loss,
        verify=options.verify_checksums,
    )
    for piece in slices:
        yield batch_of(
            piece.columns, low=piece.low, high=piece.high, schema=schema, stream=wanted.stream
        )


def near_first(wanted: ScanRange) -> ScanRange:
    """A replica on the machine of this task comes first: Python sources have no locality."""
    here = {socket.gethostname()}
    ordered = sorted(wanted.endpoints, key=lambda endpoint: endpoint.host not in here)
    return replace(wanted, endpoints=tuple(ordered))
