"""Write rows to a stream, in batch and streaming queries, each of them once.

Owns: Spark's side of the contract for writers: options and schema of the sink, what a task writes
under which name.
May not touch: the server; blocks and their window (broker/scan).
Spec: docs/decisions/0034-writers.md. The rows of a task are numbered, and the stream keeps how many
of them it has: a task that is repeated, in this run of the query or in the next one, adds what is
missing. For that it must give the same rows in the same order."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    StringType,
    StructType,
)

from broker.scan.arrow_blocks import BlockCutter
from broker.scan.client import NoServer, Planner, ReplicaAddress
from broker.scan.protocol import WRITE_SUBJECT
from broker.scan.writer import WINDOW, BlockWriter
from broker.spark.offsets import preferred
from broker.spark.option_values import OptionError
from broker.spark.options import (
    SINK_OPTIONS,
    ClusterLogin,
    ReadFrom,
    checked_name,
    connect_options,
    option_values,
    stream_name,
)
from broker.spark.worker_process import spare_loaded_modules
from broker.subjects.grammar import valid_subject

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_PER_BLOCK: Final = 8192
_HEADER_MAP: Final = MapType(StringType(), ArrayType(StringType()))
_ALLOWED: Final[dict[str, tuple[DataType, ...]]] = {
    "subject": (StringType(),),
    "data": (BinaryType(), StringType()),
    "headers": (BinaryType(), _HEADER_MAP),
    "msg_id": (StringType(),),
}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    cluster: ClusterLogin
    stream: str
    subject: str  # for all rows; "": there is a column
    writer: str  # "": the query, or a new one for each batch write
    rows_per_block: int
    window: int


def sink_options(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> SinkOptions:
    """Raises OptionError, also for a schema that does not fit."""
    values = option_values(given)
    for name in values.texts:
        if name not in SINK_OPTIONS:
            raise OptionError(f"the option {name} is of the source: remove it from the sink")
    if overwrite:
        raise OptionError("a stream cannot be overwritten: use mode('append')")
    stream = stream_name(values)
    if not stream:
        raise OptionError("which stream? Set the option stream")
    subject = values.get("subject")
    _check_schema(schema, subject)
    if subject and not valid_subject(subject.encode(), wildcards=False):
        raise OptionError(f"subject: {subject!r} is not a valid subject")
    return SinkOptions(
        cluster=connect_options(values),
        stream=checked_name(stream),
        subject=subject,
        writer=values.get("writerId"),
        rows_per_block=values.positive("blockRows") or _ROWS_PER_BLOCK,
        window=values.positive("window") or WINDOW,
    )


def _check_schema(schema: StructType, subject: str) -> None:
    names = [column.name for column in schema.fields]
    for column in schema.fields:
        allowed = _ALLOWED.get(column.name)
        if allowed is None:
            raise OptionError(
                f"the sink has no column {column.name!r}: select from {', '.join(_ALLOWED)}"
            )
        if not any(_same(column.dataType, kind) for kind in allowed):
            kinds = " or ".join(kind.simpleString() for kind in allowed)
            raise OptionError(f"column {column.name} must be {kinds}")
    if "data" not in names:
        raise OptionError("the sink needs a column data (binary or string)")
    if ("subject" in names) == bool(subject):
        raise OptionError("set the option subject, or select a column subject: one of both")


def _same(one: DataType, other: DataType) -> bool:
    return one.simpleString() == other.simpleString()


@dataclass
class Written(WriterCommitMessage):
    added: int
    repeated: int


class BatchWriter(DataSourceArrowWriter):
    """One batch write. It is made on the driver, so its tasks share the name of the writer."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._writer = options.writer or f"batch {uuid.uuid4()}"
        check_stream(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write_rows(iterator, self._options, writer=self._writer, epoch=0)


class StreamWriter(DataSourceStreamArrowWriter):
    """The sink of a streaming query: the writer is the query, the epoch is the batch."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        check_stream(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context else None
        writer = self._options.writer or query
        if not writer or batch is None:
            raise OptionError("Spark does not tell the id of this query: set the option writerId")
        return write_rows(iterator, self._options, writer=writer, epoch=int(batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do: what tasks wrote is stored."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to undo: a retry adds what is missing."""


def check_stream(options: SinkOptions) -> None:
    """Raises what the tasks would meet: no such stream, no such server, a wrong login, a missing
    permission."""
    planner = Planner(options.cluster.servers, options.cluster.login)
    try:
        planner.plan(options.stream)
        # A request without a block stores nothing; only a missing permission is raised here.
        planner.request(WRITE_SUBJECT + options.stream)
    finally:
        planner.close()


def leader_first(options: SinkOptions) -> tuple[ReplicaAddress, ...]:
    """The servers to write to, in order. Any of them would do; one that does not lead the stream
    checks every block and sends it on, which costs as much again."""
    planner = Planner(options.cluster.servers, options.cluster.login)
    try:
        plan = planner.plan(options.stream)
    except NoServer:  # no leader now, perhaps: the writer has more patience
        return options.cluster.servers
    finally:
        planner.close()
    return preferred(
        plan.replicas,
        last=plan.last_seq,
        turn=0,
        read_from=ReadFrom.LEADER,
        fallback=options.cluster.servers,
    )


def write_rows(
    batches: Iterator[pa.RecordBatch], options: SinkOptions, *, writer: str, epoch: int
) -> Written:
    """Runs in a task."""
    spare_loaded_modules()
    context = TaskContext.get()
    partition = context.partitionId() if context else 0
    out = BlockWriter(
        leader_first(options),
        options.cluster.login,
        stream=options.stream,
        writer=f"{writer}/{partition}",
        epoch=epoch,
        window=options.window,
    )
    try:
        cutter: BlockCutter | None = None
        for batch in batches:
            if cutter is None:
                cutter = BlockCutter(
                    subject=options.subject,
                    bytes_max=out.max_block(),
                    rows_max=options.rows_per_block,
                )
            for block, rows in cutter.take(batch):
                out.write(block, rows)
        for block, rows in cutter.rest() if cutter is not None else ():
            out.write(block, rows)
        out.finish()
    finally:
        out.close()
    return Written(out.added, out.repeated)
