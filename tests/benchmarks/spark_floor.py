"""The floor of Spark's Python sources: Arrow files that are mapped into memory, without a broker.

Owns: writing the rows of a stream as such files, one per partition, and the source that reads them.
Whatever a source does, Spark's Python workers hand its batches to the JVM, which makes rows of
them: what this source costs, no other Python source can avoid."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from broker.client import scan_batches

ROWS_PER_FILE = 500_000  # as the partitions of a stream


def write_files(
    place: Path, servers: str, stream: str, columns: list[str], last: int | None = None
) -> None:
    """The batches are those that readers of the stream get."""
    import pyarrow as pa

    place.mkdir()
    out: Any = None
    rows = ROWS_PER_FILE
    number = 0
    for batch in scan_batches(stream, servers=servers, columns=columns, last=last):
        if rows >= ROWS_PER_FILE:
            if out is not None:
                out.close()
            out = pa.ipc.new_file(str(place / f"{number:03}.arrow"), batch.schema)
            rows, number = 0, number + 1
        out.write_batch(batch)
        rows += batch.num_rows
    out.close()


def register(spark: Any) -> None:
    """The classes are local: Spark sends them to its workers by value."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class MappedReader(DataSourceReader):
        def __init__(self, place: str) -> None:
            self._place = place

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(str(one)) for one in sorted(Path(self._place).iterdir())]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            import pyarrow as pa

            file = pa.ipc.open_file(pa.memory_map(partition.value))
            return (file.get_batch(number) for number in range(file.num_record_batches))

    class MappedSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "mapped"

        def reader(self, schema: Any) -> MappedReader:
            return MappedReader(self.options["path"])

    spark.dataSource.register(MappedSource)
