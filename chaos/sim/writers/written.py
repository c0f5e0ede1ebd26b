"""Promises about writers: every row is stored once, in order, and answers tell the truth.

Owns: the rules, and how a row names itself.
May not touch: running nodes; it reads what they stored, of a stream from which nothing was
removed.
Spec: docs/decisions/0034-writers.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from broker.scan.protocol import WriteAnswer
from chaos.sim.promises.broken import BrokenPromise
from chaos.sim.promises.journal import Journal, Result
from chaos.sim.promises.stored import StoredRow

WRITE: Final = "write of a block"

Place = tuple[str, int, int]  # writer, epoch, row
Mark = tuple[int, int]  # epoch, rows


@dataclass(frozen=True, slots=True)
class AckedBlock:
    writer: str
    epoch: int
    invoked_ns: int
    completed_ns: int
    answer: WriteAnswer


def row_payload(writer: str, epoch: int, row: int) -> bytes:
    return f"{writer}/{epoch}/{row}".encode()


def place_of(payload: bytes) -> Place:
    writer, epoch, row = payload.decode().split("/")
    return writer, int(epoch), int(row)


def check_written(
    stream: str, journal: Journal, rows: Sequence[StoredRow], epochs: Mapping[str, Sequence[int]]
) -> None:
    """`epochs`: how many rows each epoch of a writer has; all were acknowledged."""
    stored: dict[str, list[Place]] = {writer: [] for writer in epochs}
    by_seq: dict[int, Place] = {}
    for row in rows:
        by_seq[row.seq] = place_of(row.data)
        stored[by_seq[row.seq][0]].append(by_seq[row.seq])
    for writer, sizes in epochs.items():
        wanted = [(writer, epoch, row) for epoch, size in enumerate(sizes) for row in range(size)]
        _check_order(stream, wanted, stored[writer])
    acked = [
        AckedBlock(
            one.fields["id"],
            one.fields["epoch"],
            one.invoked_ns,
            one.completed_ns,
            one.answer["told"],
        )
        for one in journal.of_kind(WRITE)
        if one.result is Result.OK
    ]
    for block in acked:
        _check_answer(stream, block, by_seq)
    for writer in epochs:
        _check_watermark(stream, [block for block in acked if block.writer == writer])


def _check_order(stream: str, wanted: Sequence[Place], found: Sequence[Place]) -> None:
    seen: set[Place] = set()
    for place in found:
        if place in seen:
            raise BrokenPromise(f"{stream}: {_told(place)} is stored twice")
        seen.add(place)
    for place in wanted:
        if place not in seen:
            raise BrokenPromise(f"{stream}: {_told(place)} was acknowledged and is lost")
    for place, instead in zip(wanted, found, strict=True):
        if place != instead:
            raise BrokenPromise(f"{stream}: {_told(instead)} is stored before {_told(place)}")


def _told(place: Place) -> str:
    return f"row {place[2]} of epoch {place[1]} of writer {place[0]}"


def _check_answer(stream: str, block: AckedBlock, by_seq: Mapping[int, Place]) -> None:
    """The added rows are stored at the sequences in the answer."""
    answer = block.answer
    for position in range(answer.added):
        place = (block.writer, block.epoch, answer.rows - answer.added + position)
        seq = answer.first_seq + position
        if by_seq.get(seq) != place:
            raise BrokenPromise(
                f"{stream}: {_told(place)} was acknowledged as {seq}, there is {by_seq.get(seq)}"
            )


def _check_watermark(stream: str, acked: Sequence[AckedBlock]) -> None:
    """The watermark never goes back. An answer that reports a gap may be about an epoch that has
    not begun."""
    newest: Mark = (0, 0)
    stored: list[tuple[int, Mark]] = []  # from then on at least this
    done = sorted(acked, key=lambda block: block.completed_ns)
    for block in done:
        if block.answer.added or block.answer.repeated:
            newest = max(newest, (block.answer.epoch, block.answer.rows))
            stored.append((block.completed_ns, newest))
    for block in done:
        mark = (block.answer.epoch, block.answer.rows)
        before = max((mark for at, mark in stored if at < block.invoked_ns), default=(0, 0))
        if mark < before:
            raise BrokenPromise(
                f"{stream}: the watermark of {block.writer} was {before}, then {mark}"
            )
