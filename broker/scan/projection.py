"""Blocks without the columns that a reader does not need: the format of projected blocks.

Owns: the flags of projected blocks, and cutting columns out of a stored block.
May not touch: sockets, storage; which rows are sent (selection.py).
Spec: a projected block is a block (broker/store/block/block_format.py) with further flags. Each
flag means that a column is missing: it has no bytes at all, neither ends nor text; its length is 0.

    bit 1: no times | bit 2: no subjects | bit 3: no headers | bit 4: no data

Sequences are always present: contiguous ones need no column. Projected blocks exist only on the
wire."""

from __future__ import annotations

from collections.abc import Iterable
from struct import pack_into
from typing import Final

from isal.isal_zlib import crc32

from broker.store.block.block_format import (
    CRC_AT,
    CRC_FROM,
    HAS_SEQS,
    HEADER,
    MAGIC,
    VERSION,
    padded,
)

NO_TIMES: Final = 2
NO_SUBJECTS: Final = 4
NO_HEADERS: Final = 8
NO_DATA: Final = 16
WITHOUT: Final = {"time": NO_TIMES, "subject": NO_SUBJECTS, "headers": NO_HEADERS, "data": NO_DATA}
NOTHING_ELSE: Final = NO_TIMES | NO_SUBJECTS | NO_HEADERS | NO_DATA
COLUMNS: Final = ("seq", *WITHOUT)


def omitted_by(columns: Iterable[str]) -> int:
    """The flags of a block with only these columns; no columns mean all of them."""
    names = frozenset(columns)
    return sum(flag for name, flag in WITHOUT.items() if name not in names) if names else 0


def projected(raw: bytes | memoryview, omitted: int) -> bytes | memoryview:
    """The block without these columns; the block itself, if there are none. It is not validated:
    the caller has done that."""
    if not omitted:
        return raw
    magic, version, flags, count, _, first_seq, *lengths, _, low, high, last_seq = (
        HEADER.unpack_from(raw)
    )
    view = memoryview(raw)
    parts: list[bytes | memoryview] = []
    at = HEADER.size

    def take(size: int, omit: int) -> None:
        nonlocal at
        if not omit:
            parts.append(view[at : at + size])
        at += size

    texts = (NO_SUBJECTS, NO_HEADERS, NO_DATA)
    if flags & HAS_SEQS:
        take(8 * count, 0)
    take(8 * count, omitted & NO_TIMES)
    for flag in texts:
        take(padded(4 * (count + 1)), omitted & flag)
    for flag, length in zip(texts, lengths, strict=True):
        take(padded(length), omitted & flag)
    kept = [0 if omitted & flag else length for flag, length in zip(texts, lengths, strict=True)]
    total = HEADER.size + sum(map(len, parts))
    head = bytearray(
        HEADER.pack(
            magic, version, flags | omitted, count, 0, first_seq, *kept, total, low, high, last_seq
        )
    )
    return _sealed(head, parts)


def only_sequences(first_seq: int, last_seq: int) -> bytes:
    """A projected block of contiguous sequences and nothing else."""
    count = last_seq - first_seq + 1
    head = HEADER.pack(
        MAGIC, VERSION, NOTHING_ELSE, count, 0, first_seq, 0, 0, 0, HEADER.size, 0, 0, last_seq
    )
    return _sealed(bytearray(head), [])


def _sealed(head: bytearray, parts: list[bytes | memoryview]) -> bytes:
    crc = crc32(memoryview(head)[CRC_FROM:])
    for part in parts:
        crc = crc32(part, crc)
    pack_into("<I", head, CRC_AT, crc)
    return b"".join((head, *parts))
