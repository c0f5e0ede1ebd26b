"""Converts rows of Arrow batches to blocks for a stream, without a loop over rows.

Owns: cutting batches into blocks, and the header block of a row that has headers or an id.
May not touch: sockets, Spark. pyarrow and numpy are imported when the first batch arrives.
Spec: broker/store/block/block_format.py; sequences and times are not assigned (0)."""

from __future__ import annotations

from collections.abc import Iterator
from struct import pack_into
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from isal.isal_zlib import crc32

from broker.store.block.block_format import CRC_AT, CRC_FROM, HEADER, MAGIC, VERSION, padded

if TYPE_CHECKING:
    import pyarrow as pa

ROW_BYTES: Final = 20  # fixed size of a row: a time and three ends
PADDING: Final = 64  # of all sections, including their first ends
PARTS_MAX: Final = 256  # parts of a block; more are joined
MSG_ID: Final = "Nats-Msg-Id"
BlockParts = tuple[bytes | memoryview, ...]  # to be sent one after the other


class RowRefused(ValueError):
    """A row cannot be a message; the text says which and why."""


class BlockCutter:
    """Cuts the rows of batches into blocks as large as the server allows, because it stores large
    blocks unchanged. Rows that do not fill a block wait for the next batch."""

    def __init__(self, *, subject: str, bytes_max: int, rows_max: int) -> None:
        self._subject = subject
        self._room = bytes_max - HEADER.size - PADDING
        self._rows_max = rows_max
        self._pieces: list[_Piece] = []
        self._rows = self._bytes = 0  # of the pieces

    def take(self, batch: pa.RecordBatch) -> Iterator[tuple[BlockParts, int]]:
        """Full blocks in order, each with its number of rows. Raises RowRefused for a row without a
        subject, or too large for any block; earlier rows are then in blocks or in `rest`."""
        columns = _MessageColumns(batch, subject=self._subject)
        start = 0
        while start < columns.rows:
            stop = columns.fitting(start, self._room - self._bytes)
            stop = min(stop, start + self._rows_max - self._rows)
            if stop > start:
                self._pieces.append(_Piece(columns, start, stop))
                self._rows += stop - start
                self._bytes += columns.size(start, stop)
            elif not self._pieces:
                raise RowRefused(
                    f"row {start} of a batch has {columns.size(start, start + 1)} bytes, and the "
                    f"server takes {self._room}: make it smaller, or raise max_payload of the "
                    "server"
                )
            if stop < columns.rows or self._rows == self._rows_max:
                yield from self.rest()
            start = stop

    def rest(self) -> Iterator[tuple[BlockParts, int]]:
        """A block of the waiting rows, if there are any."""
        if self._pieces:
            made = _block(self._pieces), self._rows
            self._pieces = []
            self._rows = self._bytes = 0
            yield made


class _MessageColumns:
    """The columns of one batch. Raises RowRefused for a row without a subject."""

    def __init__(self, batch: pa.RecordBatch, *, subject: str) -> None:
        import numpy as np
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
        self.texts = [
            _Texts(subjects),
            _Texts(_headers(batch) if {"headers", "msg_id"} & {*names} else empty),
            _Texts(batch.column("data") if "data" in names else empty),
        ]
        sizes = sum(texts.ends.astype(np.int64) for texts in self.texts)
        self._sizes = sizes + ROW_BYTES * np.arange(self.rows + 1)

    def size(self, start: int, stop: int) -> int:
        """Bytes that these rows take in a block."""
        return int(self._sizes[stop] - self._sizes[start])

    def fitting(self, start: int, room: int) -> int:
        """The row after the last one that fits, from `start` on; `start` if none does."""
        return int(self._sizes.searchsorted(self._sizes[start] + room, side="right")) - 1


class _Piece(NamedTuple):
    """Rows [start, stop) of a batch."""

    columns: _MessageColumns
    start: int
    stop: int


def _block(pieces: list[_Piece]) -> BlockParts:
    count = sum(stop - start for _, start, stop in pieces)
    ends: list[bytes | memoryview] = []
    texts: list[bytes | memoryview] = []
    sizes = []
    for column in range(3):
        base = 0
        ends.append(bytes(4))
        for columns, start, stop in pieces:
            one = columns.texts[column]
            ends.append(one.ends_of(start, stop, base))
            texts.append(one.text_of(start, stop))
            base += one.size_of(start, stop)
        ends.append(bytes(padded(4 * (count + 1)) - 4 * (count + 1)))
        texts.append(bytes(padded(base) - base))
        sizes.append(base)
    parts = [bytes(8 * count), *ends, *texts]
    total = HEADER.size + sum(map(len, parts))
    head = bytearray(HEADER.pack(MAGIC, VERSION, 0, count, 0, 0, *sizes, total, 0, 0, 0))
    crc = crc32(memoryview(head)[CRC_FROM:])
    for part in parts:
        crc = crc32(part, crc)
    pack_into("<I", head, CRC_AT, crc)
    made = [part for part in (bytes(head), *parts) if len(part)]
    return tuple(made) if len(made) <= PARTS_MAX else (b"".join(made),)


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

    def ends_of(self, start: int, stop: int, base: int) -> memoryview:
        """Without the one before the first row."""
        ends: memoryview = (self.ends[start + 1 : stop + 1] + (base - self.ends[start])).data
        return ends.cast("B")

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
