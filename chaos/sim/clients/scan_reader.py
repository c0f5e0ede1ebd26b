"""The reader's side of a scan on a simulated connection.

Owns: the bytes of one answer, from the head to the end.
May not touch: the connection.
Spec: broker/scan/protocol.py; broker/scan/link.py is the blocking reader."""

from __future__ import annotations

import asyncio

from broker.scan.protocol import (
    FRAME,
    ScanProtocolError,
    ScanRefused,
    check_frame,
    decode_end,
    decode_head,
)
from broker.store.block.codec import Block


class ScanAnswer:
    """`answer` gets the rows (sequence, payload), or ScanRefused."""

    def __init__(self, answer: asyncio.Future[list[tuple[int, bytes]]]) -> None:
        self._answer = answer
        self._rows: list[tuple[int, bytes]] = []
        self._has_head = False

    def is_next(self, buffer: bytearray) -> bool:
        """Whether the front of the buffer belongs to the scan: messages may come before it."""
        return self._has_head or buffer[1:6] == b"SCAN "

    def take(self, buffer: bytearray) -> tuple[bool, bool]:
        """Take one part from the front. Returns whether there was one and whether it was the
        last."""
        try:
            return self._take(buffer)
        except (ScanRefused, ScanProtocolError) as error:
            if not self._answer.done():
                self._answer.set_exception(error)
            return True, True

    def _take(self, buffer: bytearray) -> tuple[bool, bool]:
        at = FRAME.size if self._has_head else 0
        length, check = FRAME.unpack_from(buffer) if 0 < at <= len(buffer) else (0, 0)
        if 0 < at <= len(buffer) and length:
            if len(buffer) < at + length:
                return False, False
            block = bytes(buffer[at : at + length])
            del buffer[: at + length]
            check_frame(check, block)
            rows = Block(block)
            self._rows += [(rows.seq(row), bytes(rows.data(row))) for row in range(rows.rows)]
            return True, False
        end = buffer.find(b"\r\n", at)
        if end < 0:
            return False, False
        line = bytes(buffer[at:end])
        del buffer[: end + 2]
        if self._has_head:
            decode_end(line)
            if not self._answer.done():
                self._answer.set_result(self._rows)
            return True, True
        decode_head(line)
        self._has_head = True
        return True, False
