"""Rows of a writer are stored once, in order, whatever is repeated, lost or refused."""

from __future__ import annotations

import random

import msgspec
import pytest

from broker.jetstream.commands.publish_entry import Bounds
from broker.jetstream.commands.writer_entry import WriterMark, read_writer_entry, writer_entry
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.publish import writers
from broker.jetstream.publish.writers import Watermark, WriterAnswer, Writers
from broker.store.block.codec import BlockBuilder


class Stored:
    """A stream of numbers. Rows that are negative are refused."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.writers = Writers()

    def write(self, writer: str, epoch: int, row: int, values: list[int]) -> WriterAnswer:
        def store(skip: int) -> tuple[int, int, object]:
            first = len(self.rows) + 1
            for position, value in enumerate(values[skip:]):
                if value < 0:
                    return first, position, JetStreamError(ErrCode.STREAM_MESSAGE_EXCEEDS_MAXIMUM)
                self.rows.append(value)
            return first, len(values) - skip, None

        return self.writers.apply(WriterMark(writer, epoch, row), len(values), store)


def test_a_repeat_adds_what_is_missing_and_no_more() -> None:
    stream = Stored()
    assert stream.write("w", 0, 0, [1, 2, 3]) == WriterAnswer(rows=3, first_seq=1, added=3)
    again = stream.write("w", 0, 0, [1, 2, 3])
    assert (again.rows, again.added, again.repeated) == (3, 0, 3)
    overlap = stream.write("w", 0, 2, [3, 4, 5])
    assert (overlap.rows, overlap.first_seq, overlap.added, overlap.repeated) == (5, 4, 2, 1)
    gap = stream.write("w", 0, 7, [8])
    assert (gap.rows, gap.added, gap.repeated) == (5, 0, 0)
    assert stream.rows == [1, 2, 3, 4, 5]


def test_a_later_epoch_begins_anew_and_an_earlier_one_is_a_repeat() -> None:
    stream = Stored()
    stream.write("w", 4, 0, [1])
    assert stream.write("w", 5, 1, [9]).added == 0  # an epoch begins with row 0
    assert stream.write("w", 5, 0, [2]).rows == 1
    late = stream.write("w", 4, 1, [3])
    assert (late.epoch, late.added, late.repeated) == (5, 0, 1)
    assert stream.rows == [1, 2]


def test_a_refused_row_stays_the_next_one() -> None:
    stream = Stored()
    for _ in range(2):
        answer = stream.write("w", 0, 0, [1, 2, -3, 4])
        assert (answer.rows, answer.err_code) == (2, ErrCode.STREAM_MESSAGE_EXCEEDS_MAXIMUM)
        assert "exceeds" in answer.error
    assert stream.rows == [1, 2]
    assert stream.write("w", 0, 2, [3, 4]).rows == 4


def test_the_writer_that_was_idle_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "WRITERS_MAX", 3)
    stream = Stored()
    for name in "abcad":
        stream.write(name, 0, 0, [1])
    assert [one.writer for one in stream.writers.image()] == ["c", "a", "d"]
    copy = Writers(msgspec.msgpack.decode(
        msgspec.msgpack.encode(stream.writers.image()), type=list[Watermark]
    ))  # fmt: skip
    assert copy.image() == stream.writers.image()


def test_any_order_of_attempts_stores_every_row_once() -> None:
    dice = random.Random(7)
    for _ in range(200):
        stream, output = Stored(), list(range(1, 40))
        while len(stream.rows) < len(output):
            known = stream.writers.image()
            top = known[0].rows if known else 0
            row = dice.randint(0, min(top + 3, len(output) - 1))
            stream.write("w", 0, row, output[row : row + dice.randint(1, 9)])
            assert stream.rows == output[: len(stream.rows)]


def test_an_entry_survives_the_log() -> None:
    builder = BlockBuilder()
    builder.append(b"s", b"", b"data")
    raw = builder.build()
    mark = WriterMark("query/3", 12, 8192)
    entry = writer_entry(mark, raw, time_ns=77, bounds=Bounds(5, 6))
    time_ns, bounds, found, block = read_writer_entry(entry)
    assert (time_ns, bounds, found, bytes(block)) == (77, Bounds(5, 6), mark, raw)
