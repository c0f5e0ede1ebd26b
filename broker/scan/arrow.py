"""Blocks as Arrow record batches that share the bytes of the block.

Owns: the names and Arrow types of the columns, and building a batch without a loop over rows.
May not touch: sockets, Spark. pyarrow is imported when the first batch is made.
Copied per row: eight bytes of time (nanoseconds become microseconds), the sequence if the block
does not store it, and one bit for the presence of headers. Everything else is a view.
Spec: columns in the order seq, subject, time, headers, data; Arrow columnar format for offsets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from broker.scan.columns import BlockColumns, Section
from broker.store.block.block_format import BlockDamaged

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
DEFAULT_COLUMNS: Final = ("seq", "subject", "time", "headers", "data")
_STORED_AS: Final = {"time_ns": "time", "stream": "seq", "header_map": "headers"}


def stored_columns(names: Sequence[str]) -> tuple[str, ...]:
    """The columns of a block needed for these, for a request; () means all of them."""
    needed = {_STORED_AS.get(name, name) for name in names} | {"seq"}
    every = set(DEFAULT_COLUMNS)
    return () if needed == every else tuple(name for name in DEFAULT_COLUMNS if name in needed)


def arrow_names() -> tuple[str, ...]:
    """Every column a reader may ask for, without the variant of headers."""
    return (*DEFAULT_COLUMNS, "time_ns", "stream")


def arrow_types() -> dict[str, Any]:
    """Every column a reader may ask for, by name. `header_map` is another form of headers."""
    import pyarrow as pa

    return {
        "seq": pa.int64(),
        "subject": pa.string(),
        "time": pa.timestamp("us", "UTC"),
        "headers": pa.binary(),
        "data": pa.binary(),
        "time_ns": pa.int64(),
        "stream": pa.string(),
        "header_map": pa.map_(pa.string(), pa.list_(pa.string())),
    }


def arrow_schema(names: Sequence[str], renamed: Sequence[str] | None = None) -> pa.Schema:
    import pyarrow as pa

    types = arrow_types()
    shown = names if renamed is None else renamed
    return pa.schema(
        [pa.field(title, types[name]) for title, name in zip(shown, names, strict=True)]
    )


def batch_of(
    columns: BlockColumns,
    *,
    low: int,
    high: int,
    schema: pa.Schema,
    stream: str,
    names: Sequence[str] | None = None,
) -> pa.RecordBatch:
    """The rows with sequences low..high. The batch keeps the block's bytes alive. `names`: the
    names of the columns, if the schema has other ones."""
    import pyarrow as pa

    start, stop = columns.rows_between(low, high)
    whole = pa.py_buffer(columns.raw)
    arrays = [_MAKERS[name](columns, whole, stream) for name in names or schema.names]
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

    microseconds = pa.py_buffer(_sent(columns.times) // 1000)
    return pa.Array.from_buffers(pa.timestamp("us", "UTC"), columns.count, [None, microseconds])


def _time_ns(columns: BlockColumns, whole: pa.Buffer, stream: str) -> pa.Array:
    import pyarrow as pa

    return pa.Array.from_buffers(
        pa.int64(), columns.count, [None, pa.py_buffer(_sent(columns.times))]
    )


def _stream(columns: BlockColumns, whole: pa.Buffer, stream: str) -> pa.Array:
    import pyarrow as pa

    return pa.repeat(pa.scalar(stream, pa.string()), columns.count)


def _subject(columns: BlockColumns, whole: pa.Buffer, stream: str) -> pa.Array:
    import pyarrow as pa

    found = _texts(pa.string(), columns, whole, columns.subjects, None)
    section = _sent(columns.subjects)
    if bytes(memoryview(columns.raw)[section.bytes_at : section.bytes_at + section.size]).isascii():
        return found
    try:
        found.validate(full=True)
    except pa.ArrowInvalid:  # NATS allows any bytes; a column of texts does not
        raw = found.view(pa.binary()).to_pylist()
        return pa.array([text.decode(errors="replace") for text in raw], pa.string())
    return found


def _headers(columns: BlockColumns, whole: pa.Buffer, stream: str) -> pa.Array:
    """Raw NATS/1.0 header blocks; null for a message without headers."""
    import numpy as np
    import pyarrow as pa

    ends = _sent(columns.headers).ends
    present = np.packbits(ends[1:] > ends[:-1], bitorder="little")
    return _texts(pa.binary(), columns, whole, columns.headers, pa.py_buffer(present))


def _header_map(columns: BlockColumns, whole: pa.Buffer, stream: str) -> pa.Array:
    """Names to lists of values, in the order of the message; null without headers."""
    import pyarrow as pa

    kind = arrow_types()["header_map"]
    raw = _headers(columns, whole, stream)
    if raw.null_count == columns.count:
        return pa.nulls(columns.count, kind)
    maps = [None if one is None else list(header_lists(one).items()) for one in raw.to_pylist()]
    return pa.array(maps, kind)


def header_lists(raw: bytes) -> dict[str, list[str]]:
    """A NATS/1.0 header block as names and their values. The status line is not a header."""
    found: dict[str, list[str]] = {}
    for line in raw.decode(errors="replace").split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name, []).append(value.strip())
    return found


def _data(columns: BlockColumns, whole: pa.Buffer, stream: str) -> pa.Array:
    import pyarrow as pa

    return _texts(pa.binary(), columns, whole, columns.data, None)


def _texts(
    kind: pa.DataType,
    columns: BlockColumns,
    whole: pa.Buffer,
    column: Section | None,
    present: pa.Buffer | None,
) -> pa.Array:
    import pyarrow as pa

    section = _sent(column)
    ends = whole.slice(section.ends_at, 4 * (columns.count + 1))
    text = whole.slice(section.bytes_at, section.size)
    return pa.Array.from_buffers(kind, columns.count, [present, ends, text])


def _sent(column: T | None) -> T:
    if column is None:
        raise BlockDamaged("the replica did not send a column that was asked for")
    return column


_MAKERS: Final[dict[str, Callable[[BlockColumns, Any, str], Any]]] = {
    "seq": _seq,
    "subject": _subject,
    "time": _time,
    "headers": _headers,
    "data": _data,
    "time_ns": _time_ns,
    "stream": _stream,
    "header_map": _header_map,
}
