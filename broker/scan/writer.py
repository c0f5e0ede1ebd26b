"""Writes blocks to a stream, each row exactly once: a window of blocks, resent after a failure.

Owns: the blocks that are not acknowledged yet, and the retries when a server fails.
May not touch: asyncio, Spark, Arrow.
Bounds: WINDOW blocks are held; the write fails after FETCH_ROUNDS rounds over all servers without
progress.
Spec: docs/decisions/0034-writers.md. Answers name the watermark of the writer, so none of them has
to be matched with its request."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from broker.scan.client import FETCH_ROUNDS, PAUSE_MAX_S, PAUSE_S, NoServer
from broker.scan.link import LoginRefused, ReplicaAddress, ScanLink
from broker.scan.login import Login
from broker.scan.protocol import (
    WRITE_SUBJECT,
    PlanRefused,
    ScanProtocolError,
    WriteAnswer,
    WriteHead,
    decode_write_answer,
    encode_write,
)

WINDOW: Final = 4
HEAD_BYTES_MAX: Final = 1024  # of a request, before the block
BlockParts = Sequence[bytes | memoryview]
_Entry = tuple[int, BlockParts, int]  # first row, block, rows


class WriteRefused(Exception):
    """A row cannot be stored; the text says why."""


class BlockWriter:
    """One writer in one epoch. Not thread-safe. Rows that were stored before are not repeated."""

    def __init__(
        self,
        servers: Sequence[ReplicaAddress],
        login: Login,
        *,
        stream: str,
        writer: str,
        epoch: int,
        window: int = WINDOW,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._servers = tuple(servers)
        self._login = login
        self._stream = stream
        self._writer = writer
        self._epoch = epoch
        self._window = window
        self._pause = pause
        self._link: ScanLink | None = None
        self._next = 0
        self._failures = 0  # since the last progress
        self._reasons: dict[str, str] = {}  # server -> its last failure
        self._unacked: deque[_Entry] = deque()
        self._pending = 0  # requests on this connection without an answer
        self._busy = ""  # why one of them has to be resent
        self.sent = 0  # rows passed to `write`
        self.added = 0  # rows stored by this writer, according to the answers so far
        self._stored = 0  # rows of this epoch in the stream, according to the answers so far

    def write(self, block: BlockParts, rows: int) -> None:
        """Its parts must not change until the block is acknowledged. Raises WriteRefused,
        PlanRefused, NoServer, LoginRefused."""
        entry = (self.sent, block, rows)
        self.sent += rows
        if self.sent <= self._stored:
            return  # an earlier attempt wrote it
        self._unacked.append(entry)
        self._try(lambda: self._send(entry))
        while len(self._unacked) >= self._window:
            self._try(self._receive)

    def finish(self) -> None:
        """Wait until everything is stored."""
        while self._unacked:
            self._try(self._receive)
        self.close()

    @property
    def repeated(self) -> int:
        """Rows that an earlier attempt wrote."""
        return self.sent - self.added

    def max_block(self) -> int:
        """How large a block may be."""
        size = 0

        def look() -> None:
            nonlocal size
            size = self._connected().max_payload - HEAD_BYTES_MAX

        self._try(look)
        return size

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
        self._pending = 0
        self._busy = ""

    def _connected(self) -> ScanLink:
        """The connection. A new one first resends everything that is not acknowledged."""
        if self._link is None:
            self._link = ScanLink(self._servers[self._next % len(self._servers)], self._login)
            for entry in self._unacked:
                self._send(entry)
        return self._link

    def _send(self, entry: _Entry) -> None:
        if self._link is None:
            self._connected()  # sends this entry as well
            return
        row, block, _ = entry
        head = encode_write(WriteHead(writer=self._writer, epoch=self._epoch, row=row))
        self._link.send_request(WRITE_SUBJECT + self._stream, head, *block)
        self._pending += 1

    def _receive(self) -> None:
        link = self._connected()
        try:
            answer = decode_write_answer(link.next_answer())
        except PlanRefused as refusal:
            if refusal.code != 503:
                raise
            self._busy = str(refusal)  # answers to the other requests still arrive
        else:
            self.added += answer.added
            self._settle(answer)
        self._pending -= 1
        if not self._unacked or self._pending:
            return
        if self._busy:
            raise ScanProtocolError(self._busy)  # retry after a pause, on another server
        for entry in self._unacked:  # refused because of a gap: resend from there
            self._send(entry)

    def _settle(self, answer: WriteAnswer) -> None:
        if answer.error:
            raise WriteRefused(
                f"stream {self._stream} refuses row {answer.rows} of {self._writer}: {answer.error}"
            )
        gap = not answer.added and not answer.repeated
        if gap and self._unacked and answer.rows < self._unacked[0][0]:
            raise WriteRefused(
                f"stream {self._stream} has lost the position of {self._writer}: it was deleted "
                "and created again, or too many others wrote to it since"
            )
        later = answer.epoch > self._epoch  # so everything of this one is stored
        done = self._stored = sys.maxsize if later else max(answer.rows, self._stored)
        while self._unacked and self._unacked[0][0] + self._unacked[0][2] <= done:
            self._unacked.popleft()
            self._failures = 0
            self._reasons.clear()

    def _try(self, act: Callable[[], None]) -> None:
        while True:
            where = self._servers[self._next % len(self._servers)]
            try:
                return act()
            except LoginRefused:
                self.close()
                raise
            except PlanRefused as refusal:
                if refusal.code != 503:
                    self.close()
                    raise PlanRefused(refusal.code, refusal.description, self._stream) from refusal
                reason = str(refusal)
            except (OSError, ScanProtocolError) as error:
                reason = str(error) or type(error).__name__
            self.close()
            self._reasons[str(where)] = reason
            self._next += 1
            self._failures += 1
            rounds, others_left = divmod(self._failures, len(self._servers))
            if others_left == 0:
                if rounds >= FETCH_ROUNDS * 2:
                    raise NoServer(self._reasons)
                self._pause(min(PAUSE_S * 2 ** (rounds - 1), PAUSE_MAX_S))
            if self._unacked:
                act = self._receive
