"""The check of writers finds what it is for."""

from __future__ import annotations

import pytest

from broker.scan.protocol import WriteAnswer
from chaos.sim.promises.broken import BrokenPromise
from chaos.sim.promises.journal import Journal
from chaos.sim.promises.stored import StoredRow
from chaos.sim.world.virtual_time import WorldTime
from chaos.sim.writers.written import WRITE, check_written, row_payload

EPOCHS = {"w": [2, 1]}
WHOLE = [(0, 0), (0, 1), (1, 0)]


def stored(places: list[tuple[int, int]]) -> list[StoredRow]:
    return [
        StoredRow(seq, b"s", row_payload("w", epoch, row))
        for seq, (epoch, row) in enumerate(places, start=1)
    ]


def journal(*answers: tuple[int, WriteAnswer]) -> Journal:
    """One block after the other, with the epoch it was sent for."""
    world = WorldTime()
    written = Journal(world)
    for epoch, answer in answers:
        world.now_ns += 1
        operation = written.invoke("c", WRITE, id="w", epoch=epoch)
        world.now_ns += 1
        written.ok(operation, told=answer)
    return written


def test_rows_that_are_stored_once_and_in_order_are_right() -> None:
    told = journal(
        (0, WriteAnswer(rows=2, epoch=0, first_seq=1, added=2)),
        (1, WriteAnswer(rows=0, epoch=1)),  # a gap
        (0, WriteAnswer(rows=2, epoch=0, repeated=1)),
        (1, WriteAnswer(rows=1, epoch=1, first_seq=3, added=1)),
    )
    check_written("S", told, stored(WHOLE), EPOCHS)


@pytest.mark.parametrize(
    ("places", "text"),
    [
        ([*WHOLE, (0, 1)], "row 1 of epoch 0 of writer w is stored twice"),
        (WHOLE[1:], "row 0 of epoch 0 of writer w was acknowledged and is lost"),
        ([(0, 1), (0, 0), (1, 0)], "stored before row 0"),
    ],
)
def test_rows_that_are_not_are_found(places: list[tuple[int, int]], text: str) -> None:
    with pytest.raises(BrokenPromise, match=text):
        check_written("S", journal(), stored(places), EPOCHS)


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        ([(0, WriteAnswer(rows=2, first_seq=2, added=2))], "acknowledged as 2"),
        ([(0, WriteAnswer(rows=2, repeated=2)), (0, WriteAnswer(rows=1))], "watermark of w"),
    ],
)
def test_answers_that_are_not_true_are_found(
    answers: list[tuple[int, WriteAnswer]], text: str
) -> None:
    with pytest.raises(BrokenPromise, match=text):
        check_written("S", journal(*answers), stored(WHOLE), EPOCHS)
