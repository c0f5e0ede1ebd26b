"""The layout of a writer's entry: prefix, bounds, mark, block.

Owns: WriterMark and the bytes of the entry.
May not touch: what the entry does when it is applied (broker/jetstream/publish/writers.py).
Spec: docs/decisions/0034-writers.md."""

from __future__ import annotations

from struct import Struct as Packing
from typing import Final

import msgspec

from broker.jetstream.commands.publish_entry import (
    PUBLISH_PREFIX,
    PUBLISH_PREFIX_SIZE,
    RULES,
    Bounds,
    encode_bounds,
)
from broker.jetstream.commands.stream_commands import CommandKind

_BOUNDS: Final = Packing("<qq")
_SIZE: Final = Packing("<Q")
_ALIGN: Final = 8


class WriterMark(msgspec.Struct, array_like=True, frozen=True):
    """The writer of a block, and the position of the block in the writer's output."""

    writer: str  # name, including the partition of its output
    epoch: int  # a later epoch starts over; blocks of an earlier one are repeats
    row: int  # position of the block's first row, counted from 0 in each epoch


_marks: Final = msgspec.msgpack.Decoder(WriterMark)


def writer_entry(
    mark: WriterMark, block: bytes | memoryview, *, time_ns: int, bounds: Bounds | None
) -> bytes:
    raw = msgspec.msgpack.encode(mark)
    prefix = PUBLISH_PREFIX.pack(CommandKind.WRITER_BATCH, RULES, time_ns, 0, 0, 0)
    padding = bytes(-len(raw) % _ALIGN)
    return b"".join((prefix, encode_bounds(bounds), _SIZE.pack(len(raw)), raw, padding, block))


def read_writer_entry(entry: bytes) -> tuple[int, Bounds, WriterMark, memoryview]:
    """The time, the bounds, the mark and the bytes of the block."""
    time_ns = PUBLISH_PREFIX.unpack_from(entry)[2]
    bounds = Bounds(*_BOUNDS.unpack_from(entry, PUBLISH_PREFIX_SIZE))
    at = PUBLISH_PREFIX_SIZE + _BOUNDS.size
    (size,) = _SIZE.unpack_from(entry, at)
    at += _SIZE.size
    mark = _marks.decode(memoryview(entry)[at : at + size])
    return time_ns, bounds, mark, memoryview(entry)[at + size + -size % _ALIGN :]
