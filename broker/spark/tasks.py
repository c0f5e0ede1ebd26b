"""What runs in Spark's tasks: reading one range and handing on its batches.

Owns: RangePartition, and reading it.
May not touch: planning, offsets.
Spec: Spark 4 Python Data Source API, read()."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from broker.scan.arrow import arrow_schema, batch_of
from broker.scan.client import ScanRange, read_range
from broker.spark.options import SourceOptions
from broker.spark.worker_process import spare_loaded_modules

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """The columns of a query, as Spark names them."""

    names: tuple[str, ...]
    header_map: bool = False

    @property
    def stored(self) -> tuple[str, ...]:
        """The same, by the names that arrow.py has for them."""
        if not self.header_map:
            return self.names
        return tuple("header_map" if name == "headers" else name for name in self.names)


class RangePartition(InputPartition):
    def __init__(self, wanted: ScanRange) -> None:
        super().__init__(wanted)
        self.wanted = wanted


def read_partition(
    partition: InputPartition, options: SourceOptions, names: ColumnNames
) -> Iterator[pa.RecordBatch]:
    """Runs in a task. Spark passes an empty partition if the plan has none."""
    spare_loaded_modules()
    wanted = getattr(partition, "wanted", None)
    if not isinstance(wanted, ScanRange):
        return
    schema = arrow_schema(names.stored, renamed=names.names)
    slices = read_range(
        near_first(wanted),
        options.login,
        fail_on_data_loss=options.fail_on_data_loss,
        verify=options.verify_checksums,
        busy_timeout_s=options.busy_timeout_s,
    )
    for piece in slices:
        yield batch_of(
            piece.columns,
            low=piece.low,
            high=piece.high,
            names=names.stored,
            schema=schema,
            stream=wanted.stream,
        )


def near_first(wanted: ScanRange) -> ScanRange:
    """A replica on the machine of this task comes first: Python sources have no locality."""
    here = {socket.gethostname()}
    ordered = sorted(wanted.endpoints, key=lambda endpoint: endpoint.host not in here)
    return replace(wanted, endpoints=tuple(ordered))
