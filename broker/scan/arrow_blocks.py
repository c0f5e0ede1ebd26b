"""Rows of an Arrow batch as blocks for a stream, without a loop over rows.

Owns: cutting a batch into blocks, and the header block of a row that has headers or an id.
May not touch: sockets, Spark. pyarrow and numpy are imported when the first batch arrives.
Spec: broker/store/block/block_format.py; sequences and times are not assigned (0)."""

from __future__ import annotations

from collections.abc import Iterator
from struct import pack_into
from typing import TYPE_CHECKING, Any, Final

from isal.isal_zlib import crc32

from broker.store.block.block_format import CRC_AT, CRC_FROM, HEADER, MAGIC, VERSION, padded

if TYPE_CHECKING:
    import pyarrow as pa

ROW_BYTES: Final = 20  # of the columns that every row has: a time and three ends
MSG_ID: Final = "Nats-Msg-Id"


class RowRefused(ValueError):
    """A row cannot be a message; the text says which and why."""


class MessageColumns:
    """The columns of one batch. Raises RowRefused for a row without a subject."""

    def __init__(self, batch: pa.RecordBatch, *, subject: str) -> None:
        import pyarrow as pa

        self.rows = batch.num_rows
        names = batch.schema.names
        if "subject" in names:
            subjects = batch.column("subject")
            if subjects.null_count:
                row = subjects.is_null().index(pa.scalar(value=True)).as_py()
                raise RowRefused(f"row {row} of a batch has no subject (null)")
        else:
            subjects = pa.repeat(pa.scalar(subject, pa.string()), self.rows)
        empty = pa.repeat(pa.scalar(b"", pa.binary()), self.rows)
        self._texts = [
            _Texts(subjects),
            _Texts(_headers(batch) if {"headers", "msg_id"} & {*names} else empty),
            _Texts(batch.column("data") if "data" in names else empty),
        ]

    def blocks(self, *, bytes_max: int, rows_max: int) -> Iterator[tuple[bytes, int]]:
        """Blocks and how many rows they have, in order. Raises RowRefused for a row that is too
        large for any block."""
        import numpy as np

        sizes = sum(texts.ends.astype(np.int64) for texts in self._texts)
        sizes = sizes + ROW_BYTES * np.arange(self.rows + 1)
        room = bytes_max - HEADER.size - 64  # padding
        start = 0
        while start < self.rows:
            fits = int(np.searchsorted(sizes, sizes[start] + room, side="right")) - 1
            stop = min(fits, start + rows_max)
            if stop <= start:
                size = int(sizes[start + 1] - sizes[start])
                raise RowRefused(
                    f"row {start} of a batch has {size} bytes, and the server takes {room}: make "
                    "it smaller, or raise max_payload of the server"
                )
            yield self._block(start, stop), stop - start
            start = stop

    def _block(self, start: int, stop: int) -> bytes:
        count = stop - start
        parts: list[Any] = [bytes(8 * count)]
        parts += [texts.ends_of(start, stop) for texts in self._texts]
        sizes = [texts.size_of(start, stop) for texts in self._texts]
        for texts, size in zip(self._texts, sizes, strict=True):
            parts += [texts.text_of(start, stop), bytes(padded(size) - size)]
        total = HEADER.size + sum(map(len, parts))
        head = bytearray(HEADER.pack(MAGIC, VERSION, 0, count, 0, 0, *sizes, total, 0, 0, 0))
        crc = crc32(memoryview(head)[CRC_FROM:])
        for part in parts:
            crc = crc32(part, crc)
        pack_into("<I", head, CRC_AT, crc)
        return b"".join((head, *parts))


class _Texts:
    """One column: ends from 0, and the text they refer to."""

    def __init__(self, column: pa.Array) -> None:
        import numpy as np
        import pyarrow as pa

        array = column.cast(pa.binary())
        if array.null_count:
            array = array.fill_null(b"")
        _, ends, text = array.buffers()
        count = len(array)
        raw = np.frombuffer(ends, np.int32, count + 1, 4 * array.offset) if count else [0]
        self._base = int(raw[0])
        self.ends = np.asarray(raw, np.int32) - self._base
        self._text = memoryview(b"" if text is None else text)

    def ends_of(self, start: int, stop: int) -> bytes:
        ends: bytes = (self.ends[start : stop + 1] - self.ends[start]).tobytes()
        return ends + bytes(padded(len(ends)) - len(ends))

    def size_of(self, start: int, stop: int) -> int:
        return int(self.ends[stop] - self.ends[start])

    def text_of(self, start: int, stop: int) -> memoryview:
        low, high = (self._base + int(self.ends[at]) for at in (start, stop))
        return self._text[low:high]


def _headers(batch: pa.RecordBatch) -> pa.Array:
    """Header blocks: raw ones, maps of lists, and ids."""
    import pyarrow as pa

    names = batch.schema.names
    count = batch.num_rows
    given = batch.column("headers").to_pylist() if "headers" in names else [None] * count
    ids = batch.column("msg_id").to_pylist() if "msg_id" in names else [None] * count
    return pa.array(
        [_header_block(one, msg_id) for one, msg_id in zip(given, ids, strict=True)], pa.binary()
    )


def _header_block(given: Any, msg_id: str | None) -> bytes:
    lines: list[str] = []
    if isinstance(given, bytes) and given:
        if not given.startswith(b"NATS/1.0") or not given.endswith(b"\r\n\r\n"):
            raise RowRefused(f"headers {given[:40]!r} are not a NATS/1.0 header block")
        if not msg_id:
            return given
        lines = given.decode("latin-1").split("\r\n")[1:-2]
    elif given:
        pairs = given.items() if isinstance(given, dict) else given
        lines = [f"{name}: {value}" for name, values in pairs for value in values]
    if msg_id:
        lines.append(f"{MSG_ID}: {msg_id}")
    if any("\r" in line or "\n" in line for line in lines):
        raise RowRefused(f"a header or msg_id has a line break: {lines[-1]!r}")
    if not lines:
        return b""
    return "\r\n".join(("NATS/1.0", *lines, "\r\n")).encode()
