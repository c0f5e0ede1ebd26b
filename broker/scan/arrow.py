"""Blocks as Arrow record batches that share the bytes of the block.

Owns: the names and Arrow types of the columns, and building a batch without a loop over rows.
May not touch: sockets, Spark. pyarrow is imported when the first batch is made.
Copied per row: eight bytes of time (nanoseconds become microseconds), the sequence if the block
does not store it, and one bit for the presence of headers. Everything else is a view.
Spec: columns in the order seq, subject, time, headers, data; Arrow columnar format for offsets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from broker.scan.columns import BlockColumns, Section

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_COLUMNS: Final = ("seq", "subject", "time", "headers", "data")


def arrow_types() -> dict[str, Any]:
    """Every column a reader may ask for, by name."""
    import pyarrow as pa

    return {
        "seq": pa.int64(),
        "subject": pa.string(),
        "time": pa.timestamp("us", "UTC"),
        "headers": pa.binary(),
        "data": pa.binary(),
        "time_ns": pa.int64(),
        "stream": pa.string(),
    }


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    import pyarrow as pa

    types = arrow_types()
    return pa.schema([pa.field(name, types[name]) for name in names])


def batch_of(
    columns: BlockColumns, *, low: int, high: int, schema: pa.Schema, stream: str
) -> pa.RecordBatch:
    """The rows with sequences low..high. The batch keeps the block's bytes alive."""
    import pyarrow as pa

    start, stop = columns.rows_between(low, high)
    whole = pa.py_buffer(columns.raw)
    arrays = [_MAKERS[name](columns, whole, stream) for name in schema.names]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return batch if stop - start == columns.count else batch.slice(start, stop - start)


def _seq(columns: BlockColumns, whole: pa.Buffer, stream: str) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    seqs = columns.seqs
    if seqs is None:
        seqs = np.arange(columns.first_seq, columns.last_seq + 1, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), columns.count, [None, pa.py_buffer(seqs)])


def _time(columns: BlockColumns, whole: pa.Buffer, stream: str) -> pa.Array:
    import pyarrow as pa

    microseconds = pa.py_buffer(columns.times // 1000)
    return pa.Array.from_buffers(pa.timestamp("us", "UTC"), columns.count, [None, microseconds])


def _time_ns(columns: BlockColumns, whole: pa.Buffer, stream: str) -> pa.Array:
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int64(), columns.count, [None, pa.py_buffer(columns.times)])


def _stream(columns: BlockColumns, whole: pa.Buffer, stream: str) -> pa.Array:
    import pyarrow as pa

    return pa.repeat(pa.scalar(stream, pa.string()), columns.count)


def _subject(columns: BlockColumns, whole: pa.Buffer, stream: str) -> pa.Array:
    import pyarrow as pa

    return _texts(pa.string(), columns, whole, columns.subjects, None)


def _headers(columns: BlockColumns, whole: pa.Buffer, stream: str) -> pa.Array:
    """Raw NATS/1.0 header blocks; null for a message without headers."""
    import numpy as np
    import pyarrow as pa

    ends = columns.headers.ends
    present = np.packbits(ends[1:] > ends[:-1], bitorder="little")
    return _texts(pa.binary(), columns, whole, columns.headers, pa.py_buffer(present))


def _data(columns: BlockColumns, whole: pa.Buffer, stream: str) -> pa.Array:
    import pyarrow as pa

    return _texts(pa.binary(), columns, whole, columns.data, None)


def _texts(
    kind: pa.DataType,
    columns: BlockColumns,
    whole: pa.Buffer,
    section: Section,
    present: pa.Buffer | None,
) -> pa.Array:
    import pyarrow as pa

    ends = whole.slice(section.ends_at, 4 * (columns.count + 1))
    text = whole.slice(section.bytes_at, section.size)
    return pa.Array.from_buffers(kind, columns.count, [present, ends, text])


_MAKERS: Final[dict[str, Callable[[BlockColumns, Any, str], Any]]] = {
    "seq": _seq,
    "subject": _subject,
    "time": _time,
    "headers": _headers,
    "data": _data,
    "time_ns": _time_ns,
    "stream": _stream,
}
