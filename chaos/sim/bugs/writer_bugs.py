"""Bugs of writers: watermarks that are lost, skipped or not checked.

Owns: the replaced functions.
May not touch: anything while no bug is installed."""

from __future__ import annotations

from typing import Any, Final

from broker.jetstream.commands.writer_entry import WriterMark
from broker.jetstream.publish.writers import Watermark, WriterAnswer, Writers
from broker.jetstream.stream import stream
from chaos.sim.bugs.broker_bug import BrokerBug, Replacement

_WRITERS: Final = ("writers",)


def _forget_watermarks(original: type[Writers]) -> object:
    return lambda _watermarks: original()


def _store_again(original: Any) -> object:
    """As if a block that begins below the watermark were new."""

    def apply(self: Writers, mark: WriterMark, rows: int, store: Any) -> WriterAnswer:
        known = self._known.get(mark.writer)
        if known is not None and known.epoch == mark.epoch and mark.row < known.rows:
            mark = WriterMark(mark.writer, mark.epoch, known.rows)
        answer: WriterAnswer = original(self, mark, rows, store)
        return answer

    return apply


def _store_behind_a_gap(original: Any) -> object:
    def apply(self: Writers, mark: WriterMark, rows: int, store: Any) -> WriterAnswer:
        known = self._known.get(mark.writer)
        stored = known.rows if known is not None and known.epoch == mark.epoch else 0
        if mark.row > stored and (known is None or mark.epoch >= known.epoch):
            self._remember(Watermark(mark.writer, mark.epoch, mark.row))
        answer: WriterAnswer = original(self, mark, rows, store)
        return answer

    return apply


def _begin_an_old_epoch_again(original: Any) -> object:
    def apply(self: Writers, mark: WriterMark, rows: int, store: Any) -> WriterAnswer:
        known = self._known.get(mark.writer)
        if known is not None and mark.epoch < known.epoch:
            self._remember(Watermark(mark.writer, mark.epoch, 0))
        answer: WriterAnswer = original(self, mark, rows, store)
        return answer

    return apply


WRITER_BUGS: Final[dict[str, BrokerBug]] = {
    "watermarks left out of a checkpoint": BrokerBug(
        "a checkpoint has the watermarks of all writers",
        (Replacement(stream, "Writers", _forget_watermarks),),
        found_by=0,
        workloads=_WRITERS,
        faults=("kill", "stop"),
    ),
    "a repeated block is stored again": BrokerBug(
        "rows below the watermark are repeats",
        (Replacement(Writers, "apply", _store_again),),
        found_by=0,
        workloads=_WRITERS,
    ),
    "rows behind a gap are stored": BrokerBug(
        "a block that begins above the watermark is refused",
        (Replacement(Writers, "apply", _store_behind_a_gap),),
        found_by=2,
        workloads=_WRITERS,
    ),
    "a block of an old epoch is stored": BrokerBug(
        "a block of an earlier epoch is a repeat",
        (Replacement(Writers, "apply", _begin_an_old_epoch_again),),
        found_by=1,
        workloads=_WRITERS,
    ),
}
