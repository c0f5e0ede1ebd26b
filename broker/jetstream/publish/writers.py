"""Writers: each row of a writer's output is stored once, however often it is sent.

Owns: the watermark of every writer: its epoch, and how many rows of it are stored.
May not touch: how a message is checked and stored (message_writer.py), clocks.
Spec: docs/decisions/0034-writers.md. Rows of a writer arrive in order. Rows of a block below the
watermark are repeats and skipped; a block that begins above it is refused, and the answer names the
expected row. A row that cannot be stored ends the block: the watermark stays there, so that a retry
is refused at the same row. A watermark is evicted when WRITERS_MAX others were used since (LRU)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from broker.jetstream.commands.writer_entry import WriterMark
from broker.jetstream.errors import JetStreamError

WRITERS_MAX: Final = 10_000  # per stream; the one that has been idle longest is forgotten


class Watermark(msgspec.Struct, array_like=True, frozen=True):
    """As stored in the record of a stream."""

    writer: str
    epoch: int
    rows: int  # of this epoch that are stored


class WriterAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to a block."""

    rows: int = 0  # of the epoch that are stored now: the next row that is expected
    epoch: int = 0
    first_seq: int = 0  # of the rows that this block added, if there are any
    added: int = 0
    repeated: int = 0
    err_code: int = 0  # why row `rows` was refused
    error: str = ""


class Writers:
    def __init__(self, watermarks: list[Watermark] | None = None) -> None:
        # Least recently used first.
        self._known = {one.writer: one for one in watermarks or []}

    def image(self) -> list[Watermark]:
        return list(self._known.values())

    def __len__(self) -> int:
        return len(self._known)

    def apply(
        self, mark: WriterMark, rows: int, store: Callable[[int], tuple[int, int, object]]
    ) -> WriterAnswer:
        """`store(skip)` stores the block without its first rows. It returns the first sequence, how
        many rows were stored, and the refusal of the next one, or None."""
        known = self._known.get(mark.writer) or Watermark(mark.writer, mark.epoch, 0)
        if mark.epoch < known.epoch:
            return WriterAnswer(rows=known.rows, epoch=known.epoch, repeated=rows)
        stored = known.rows if mark.epoch == known.epoch else 0
        if mark.row > stored:
            return WriterAnswer(rows=stored, epoch=mark.epoch)
        skip = min(stored - mark.row, rows)
        first_seq, added, refused = store(skip) if skip < rows else (0, 0, None)
        stored += added
        self._remember(Watermark(mark.writer, mark.epoch, stored))
        answer = WriterAnswer(
            rows=stored, epoch=mark.epoch, first_seq=first_seq, added=added, repeated=skip
        )
        if isinstance(refused, JetStreamError):
            body = refused.body()
            return msgspec.structs.replace(
                answer, err_code=body.err_code, error=body.description or "refused"
            )
        return answer

    def _remember(self, watermark: Watermark) -> None:
        self._known.pop(watermark.writer, None)
        self._known[watermark.writer] = watermark
        if len(self._known) > WRITERS_MAX:
            del self._known[next(iter(self._known))]
