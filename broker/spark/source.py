"""format("jetraft"): a stream as a Spark table, in batch and streaming queries.

Owns: Spark's side of the contract for the driver: schema, options, batch reads.
May not touch: the server. It imports the scan client only.
Objects here are pickled and sent to Spark's workers, so they hold no sockets or locks; connections
are opened where they are used.
Spec: Spark 4 Python Data Source API; docs/spark.md."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from broker.scan.arrow import stored_columns
from broker.spark.options import IncludeHeaders, SourceOptions, parse_options
from broker.spark.planning import QueryPlanner
from broker.spark.pushdown import Narrowed, narrow
from broker.spark.sink import BatchWriter, StreamWriter, sink_options
from broker.spark.stream_source import JetRaftStreamReader
from broker.spark.tasks import ColumnNames, RangePartition, read_partition
from broker.spark.worker_process import spare_loaded_modules

if TYPE_CHECKING:
    import pyarrow as pa

_TEXTS: Final = MapType(StringType(), ArrayType(StringType()))
COLUMN_TYPES: Final[dict[str, DataType]] = {
    "seq": LongType(),
    "subject": StringType(),
    "time": TimestampType(),
    "headers": BinaryType(),
    "data": BinaryType(),
    "time_ns": LongType(),
    "stream": StringType(),
}
_PUSHDOWN_WORKER: Final = "data_source_pushdown_filters.py"


class SchemaError(ValueError):
    """The schema of the user has a column or type that messages do not have."""


class JetRaftDataSource(DataSource):
    """The class behind `spark.read.format("jetraft")`, on the driver."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        spare_loaded_modules()

    @classmethod
    def name(cls) -> str:
        return "jetraft"

    def schema(self) -> StructType:
        options = parse_options(self.options)
        types = column_types(options.include_headers)
        return StructType([StructField(name, types[name]) for name in options.columns])

    def reader(self, schema: StructType) -> JetRaftReader:
        spare_loaded_modules()
        options = parse_options(self.options)
        pushes = options.pushdown and _filters_are_pushed()
        kind = PushingReader if pushes else JetRaftReader
        return kind(options, column_names(schema, options.include_headers))

    def streamReader(self, schema: StructType) -> JetRaftStreamReader:
        options = parse_options(self.options)
        return JetRaftStreamReader(options, column_names(schema, options.include_headers))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001 - Spark's
        return BatchWriter(sink_options(self.options, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001
        return StreamWriter(sink_options(self.options, schema, overwrite=overwrite))


class JetRaftReader(DataSourceReader):
    """One batch query: the range is fixed when Spark plans it."""

    def __init__(self, options: SourceOptions, names: ColumnNames) -> None:
        self._options = options
        self._names = names
        self._narrowed = Narrowed()

    def partitions(self) -> Sequence[InputPartition]:
        planner = QueryPlanner(self._options)
        try:
            found = planner.batch(self._narrowed, stored_columns(self._names.stored))
        finally:
            planner.close()
        return [RangePartition(one) for one in found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._options, self._names)


class PushingReader(JetRaftReader):
    """With filters. Spark refuses a reader that has this method unless
    spark.sql.python.filterPushdown.enabled is true, so there are two classes. It must be asked for
    with an option: Spark 4.3 keeps one plan for all queries of one load(), and uses the filters of
    one query for another (docs/spark.md)."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._narrowed, left = narrow(filters, self._options.subjects)
        return left


def _filters_are_pushed() -> bool:
    """Whether the caller is the worker that pushes filters. It does not tell us otherwise."""
    return any(frame.filename.endswith(_PUSHDOWN_WORKER) for frame in traceback.extract_stack())


def column_types(headers: IncludeHeaders) -> dict[str, DataType]:
    return COLUMN_TYPES | ({"headers": _TEXTS} if headers is IncludeHeaders.MAP else {})


def column_names(schema: StructType, headers: IncludeHeaders) -> ColumnNames:
    """The columns to read, in the order of the schema that the user gave. Raises SchemaError."""
    types = column_types(headers)
    for column in schema.fields:
        expected = types.get(column.name)
        if expected is None:
            raise SchemaError(f"no column {column.name!r}; choose from {', '.join(types)}")
        if column.dataType != expected:
            raise SchemaError(f"column {column.name} is a {expected.simpleString()}")
    names = tuple(column.name for column in schema.fields)
    return ColumnNames(names, header_map=headers is IncludeHeaders.MAP)
