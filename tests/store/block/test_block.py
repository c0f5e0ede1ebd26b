"""Blocks: rows round trip, numbered and stamped as requested, in both implementations."""

from types import SimpleNamespace
from typing import Any

import pytest

from broker.store.block import (
    _block,
    _builder,
    _deliveries,
    block_format,
    builder_py,
    deliveries_py,
)
from broker.wire import _run, run_py

CODECS = {
    "python": SimpleNamespace(
        Block=block_format.Block,
        BlockBuilder=builder_py.BlockBuilder,
        stamped=builder_py.stamped,
        encode_deliveries=deliveries_py.encode_deliveries,
        PubRun=run_py.PubRun,
    ),
    "cython": SimpleNamespace(
        Block=_block.Block,
        BlockBuilder=_builder.BlockBuilder,
        stamped=_builder.stamped,
        encode_deliveries=_deliveries.encode_deliveries,
        PubRun=_run.PubRun,
    ),
}
HEADERS = b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n"
MESSAGES = [
    (b"orders.eu", b"r.1", b"", b"one"),
    (b"orders.eu", b"", HEADERS, b"two!"),
    (b"orders.us", b"", b"", b""),
    (b"orders.eu", b"r.4", b"", b"four"),
]


@pytest.fixture(params=CODECS)
def codec(request: pytest.FixtureRequest) -> Any:
    return CODECS[request.param]


@pytest.fixture
def unassigned(codec: Any) -> Any:
    """A block as an outbox sends it: no times, no sequences."""
    builder = codec.BlockBuilder()
    builder.append_run(codec.PubRun.of(MESSAGES), 0, 4)
    return codec.Block(builder.build())


def rows_of(rows: Any) -> list[tuple[bytes, bytes, bytes]]:
    return [(rows.subject(i), rows.headers(i), rows.data(i)) for i in range(rows.rows)]


def seqs_of(rows: Any) -> list[int]:
    return [rows.seq(i) for i in range(rows.rows)]


def times_of(rows: Any) -> list[int]:
    return [rows.time(i) for i in range(rows.rows)]


def test_layout_is_as_documented(codec: Any) -> None:
    builder = codec.BlockBuilder(first_seq=7)
    builder.append(b"ab", b"", b"xyz", time_ns=5)
    raw = builder.build()
    assert raw[:12].hex(" ") == "4a 52 42 31 01 00 00 00 01 00 00 00"
    assert raw[16:64].hex(" ", 8) == (
        "0700000000000000 0200000000000000 0300000070000000 0500000000000000 0500000000000000 "
        "0700000000000000"
    )
    assert raw[64:].hex(" ", 8) == (
        "0500000000000000 0000000002000000 0000000000000000 0000000003000000 "
        "6162000000000000 78797a0000000000"
    )


def test_unassigned_rows_have_no_time_and_no_sequence(unassigned: Any) -> None:
    assert rows_of(unassigned) == [(s, h, d) for s, _, h, d in MESSAGES]
    assert (unassigned.first_seq, unassigned.last_seq) == (0, 0)
    assert seqs_of(unassigned) == times_of(unassigned) == [0, 0, 0, 0]
    assert unassigned.index_of(1) == -1
    assert unassigned.first_at_or_after(0) == 4


def test_numbers_of_a_block(unassigned: Any) -> None:
    assert unassigned.count == unassigned.rows == 4
    assert unassigned.subjects_len == 36
    assert unassigned.headers_len == len(HEADERS)
    assert unassigned.data_len == 11
    assert unassigned.nbytes == len(unassigned.raw)
    assert unassigned.row_size(1) == unassigned.max_row_size == len(HEADERS) + 4


def test_subject_runs_and_summary(unassigned: Any) -> None:
    assert unassigned.subject_runs() == [
        (b"orders.eu", 0, 2),
        (b"orders.us", 2, 3),
        (b"orders.eu", 3, 4),
    ]
    assert unassigned.subject_summary() == {b"orders.eu": [3, 0, 3], b"orders.us": [1, 2, 2]}


def test_a_summary_counts_more_subjects_than_are_remembered(codec: Any) -> None:
    """Subjects with the same end, with few bytes, and many that come again and again."""
    names = [b"%d.same.end" % (k % 5) for k in range(20)] + [b"a", b"b", b"a"]
    names += [b"s.%d" % (k * k % 5003) for k in range(9000)]
    builder = codec.BlockBuilder()
    for name in names:
        builder.append(name, b"", b"", time_ns=1)
    expected: dict[bytes, list[int]] = {}
    for row, name in enumerate(names):
        entry = expected.setdefault(name, [0, row, row])
        entry[0] += 1
        entry[2] = row
    found = codec.Block(builder.build()).subject_summary()
    assert found == expected
    assert list(found) == list(expected)


def test_append_block_stamps_time_and_sequence(codec: Any, unassigned: Any) -> None:
    tail = codec.BlockBuilder(first_seq=10)
    tail.append_block(unassigned, time_ns=99, first_seq=10)
    tail.append_block(unassigned, time_ns=100)
    assert seqs_of(tail) == list(range(10, 18))
    assert times_of(tail) == [99] * 4 + [100] * 4
    stored = codec.Block(tail.build())
    assert rows_of(stored) == rows_of(tail) == rows_of(unassigned) * 2
    assert (stored.first_seq, stored.last_seq) == (10, 17)
    assert (stored.min_time, stored.max_time) == (99, 100)
    assert stored.index_of(17) == 7
    assert stored.index_of(18) == stored.index_of(9) == -1


def test_skipped_rows_take_no_sequence_when_stamped(codec: Any, unassigned: Any) -> None:
    tail = codec.BlockBuilder()
    tail.append_block(unassigned, first_seq=5, skip={0, 2, 77})
    assert seqs_of(tail) == [5, 6]
    assert [tail.data(i) for i in range(tail.rows)] == [b"two!", b"four"]


def test_skipped_rows_leave_gaps_when_sequences_are_kept(codec: Any, unassigned: Any) -> None:
    first = codec.BlockBuilder()
    first.append_block(unassigned, time_ns=1, first_seq=5)
    second = codec.BlockBuilder()
    second.append_block(codec.Block(first.build()), skip={1, 2})
    block = codec.Block(second.build())
    assert seqs_of(block) == seqs_of(second) == [5, 8]
    assert [block.index_of(seq) for seq in range(4, 10)] == [-1, 0, -1, -1, 1, -1]
    assert [block.first_at_or_after(seq) for seq in range(4, 10)] == [0, 0, 1, 1, 1, 2]
    third = codec.BlockBuilder()
    third.append_block(block)
    assert third.build() == second.build()


def test_sequences_only_rise(codec: Any) -> None:
    builder = codec.BlockBuilder()
    builder.append(b"a", b"", b"", seq=5)
    for seq in (5, 4, -1):
        with pytest.raises(ValueError, match="sequence"):
            builder.append(b"a", b"", b"", seq=seq)
    builder.append(b"a", b"", b"")
    assert seqs_of(builder) == [5, 6]
    loose = codec.BlockBuilder()
    loose.append(b"a", b"", b"")
    with pytest.raises(ValueError, match="without a sequence"):
        loose.append(b"a", b"", b"", seq=1)
    for seq in (2**63 - 1, 2**63, 2**70):
        with pytest.raises(OverflowError):
            builder.append(b"a", b"", b"", seq=seq)
    assert builder.rows == 2


def test_a_refused_block_does_not_change_the_builder(codec: Any, unassigned: Any) -> None:
    builder = codec.BlockBuilder()
    builder.append(b"a", b"", b"", seq=5)
    before = builder.build()
    with pytest.raises(ValueError, match="sequence 3 after 5"):
        builder.append_block(unassigned, first_seq=3)
    with pytest.raises(OverflowError):
        builder.append_block(unassigned, first_seq=2**63 - 4)
    with pytest.raises(IndexError):
        builder.append_run(codec.PubRun.of(MESSAGES), 2, 5)
    assert builder.build() == before


def test_a_cleared_builder_continues_numbering(codec: Any) -> None:
    builder = codec.BlockBuilder(first_seq=1)
    builder.append(b"a", b"h", b"x" * 100_000)
    builder.clear()
    assert (builder.rows, builder.first_seq, builder.last_seq) == (0, 2, 1)
    assert builder.nbytes == len(builder.build())
    builder.append(b"a", b"", b"y")
    assert (seqs_of(builder), rows_of(builder)) == ([2], [(b"a", b"", b"y")])
    loose = codec.BlockBuilder()
    loose.append(b"a", b"", b"x")
    loose.clear()
    assert (loose.rows, loose.first_seq, loose.last_seq) == (0, 0, 0)


def test_an_empty_block_is_valid(codec: Any) -> None:
    for first_seq, last_seq in ((0, 0), (1, 0), (9, 8)):
        block = codec.Block(codec.BlockBuilder(first_seq=first_seq).build())
        assert (block.rows, block.first_seq, block.last_seq) == (0, first_seq, last_seq)
        assert block.subject_runs() == []
        assert block.subject_summary() == {}
        assert block.max_row_size == 0
        assert not block.any_nats_header()
        with pytest.raises(IndexError):
            block.data(0)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([b"", b"NATS/1.0\r\nA: Nats-B\r\n\r\n"], False),
        ([b"NATS/1.0\r\nA: 1\r\nNats-X: 1\r\n\r\n"], True),
        ([b"x\nNat", b"s-Y"], False),  # a line does not continue in the next row
        ([b"x", b"Nats-Y: 1"], True),
        ([b"nats-x"], False),
    ],
)
def test_nats_headers_are_found_at_line_starts(
    codec: Any, headers: list[bytes], expected: bool
) -> None:
    builder = codec.BlockBuilder()
    for raw in headers:
        builder.append(b"a", raw, b"")
    assert builder.any_nats_header() is expected
    assert codec.Block(builder.build()).any_nats_header() is expected


def test_row_numbers_out_of_range_are_refused(codec: Any, unassigned: Any) -> None:
    for i in (-1, 4):
        for read in ("subject", "headers", "data", "time", "seq", "row_size"):
            with pytest.raises(IndexError):
                getattr(unassigned, read)(i)


def test_deliveries_have_the_ack_reply_subject(codec: Any, unassigned: Any) -> None:
    tail = codec.BlockBuilder()
    tail.append_block(unassigned, time_ns=1_700_000_000_000_000_000, first_seq=9)
    text = codec.encode_deliveries(tail, [0, 1], b"3", b"$JS.ACK.S.C", None, 100, 10, True)
    assert text == (
        b"MSG orders.eu 3 $JS.ACK.S.C.1.9.100.1700000000000000000.10 3\r\none\r\n"
        b"HMSG orders.eu 3 $JS.ACK.S.C.1.10.101.1700000000000000000.9 %d %d\r\n%btwo!\r\n"
    ) % (len(HEADERS), len(HEADERS) + 4, HEADERS)
    block = codec.Block(tail.build())
    text = codec.encode_deliveries(block, [3, 1], b"3", b"$JS.ACK.S.C", [4, 2], 7, 1, False)
    assert text == (
        b"MSG orders.eu 3 $JS.ACK.S.C.4.12.7.1700000000000000000.1 4\r\nfour\r\n"
        b"MSG orders.eu 3 $JS.ACK.S.C.2.10.8.1700000000000000000.0 4\r\ntwo!\r\n"
    )
    assert codec.encode_deliveries(block, [], b"3", b"p", None, 1, 0, True) == b""


def test_deliveries_refuse_arguments_that_do_not_match(codec: Any, unassigned: Any) -> None:
    with pytest.raises(IndexError):
        codec.encode_deliveries(unassigned, [0, 4], b"1", b"p", None, 1, 0, True)
    with pytest.raises(ValueError, match="differ in length"):
        codec.encode_deliveries(unassigned, [0, 1], b"1", b"p", [1], 1, 0, True)


def test_block_reads_a_slice_of_a_larger_buffer_at_any_offset(codec: Any, unassigned: Any) -> None:
    for offset in range(9):
        view = memoryview(b"\xff" * offset + bytes(unassigned.raw))[offset:]
        assert rows_of(codec.Block(view)) == rows_of(unassigned)


def test_writable_memory_is_copied(codec: Any, unassigned: Any) -> None:
    memory = bytearray(unassigned.raw)
    block = codec.Block(memoryview(memory))
    memory[:] = bytes(len(memory))
    assert rows_of(block) == rows_of(unassigned)


def test_a_block_stays_valid_after_its_view_is_released(codec: Any, unassigned: Any) -> None:
    view = memoryview(bytes(unassigned.raw))
    block = codec.Block(view)
    view.release()
    assert rows_of(block) == rows_of(unassigned)


def test_a_stamped_block_is_what_a_builder_makes_of_its_rows(codec: Any, unassigned: Any) -> None:
    builder = codec.BlockBuilder(first_seq=41)
    builder.append_block(unassigned, time_ns=77, first_seq=41)
    made = codec.stamped(unassigned, time_ns=77, first_seq=41)
    assert made == builder.build()
    assert seqs_of(codec.Block(made)) == [41, 42, 43, 44]
    assert seqs_of(unassigned) == [0, 0, 0, 0], "the block itself is not changed"


def test_only_rows_without_sequences_are_stamped(codec: Any, unassigned: Any) -> None:
    numbered = codec.Block(codec.stamped(unassigned, time_ns=1, first_seq=1))
    empty = codec.Block(codec.BlockBuilder().build())
    for block, first_seq in ((numbered, 5), (empty, 5), (unassigned, 0)):
        with pytest.raises(ValueError, match="without sequences"):
            codec.stamped(block, time_ns=1, first_seq=first_seq)
    with pytest.raises(OverflowError):
        codec.stamped(unassigned, time_ns=1, first_seq=block_format.SEQ_MAX - 2)


def test_a_misaligned_block_is_stamped(codec: Any, unassigned: Any) -> None:
    shifted = codec.Block(memoryview(b"x" + unassigned.raw)[1:])
    assert codec.stamped(shifted, time_ns=7, first_seq=1) == codec.stamped(
        unassigned, time_ns=7, first_seq=1
    )
