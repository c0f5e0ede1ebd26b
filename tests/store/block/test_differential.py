"""Both builders get the same calls: same bytes, same results, same errors."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.store.block import (
    _block,
    _builder,
    _deliveries,
    _origins,
    block_format,
    builder_py,
    deliveries_py,
    origins_py,
)
from broker.subjects import matcher
from broker.wire import _run, run_py

TWIN = SimpleNamespace(
    Block=block_format.Block,
    BlockBuilder=builder_py.BlockBuilder,
    encode_deliveries=deliveries_py.encode_deliveries,
    append_delivered=origins_py.append_delivered,
    append_sourced=origins_py.append_sourced,
    PubRun=run_py.PubRun,
)
COMPILED = SimpleNamespace(
    Block=_block.Block,
    BlockBuilder=_builder.BlockBuilder,
    encode_deliveries=_deliveries.encode_deliveries,
    append_delivered=_origins.append_delivered,
    append_sourced=_origins.append_sourced,
    PubRun=_run.PubRun,
)

tokens = st.sampled_from([b"a", b"b", b"ab", b"*", b">", b"*a", b"a>"])
dotted = st.lists(tokens, min_size=1, max_size=4).map(b".".join)

subjects = st.sampled_from([b"a", b"a", b"b", b"orders.eu.1"])
headers = st.sampled_from([b"", b"", b"NATS/1.0\r\nNats-A: 1\r\n\r\n", b"Nats-", b"x"])
data = st.binary(max_size=9)
seqs = st.one_of(st.just(0), st.integers(0, 40), st.integers(2**63 - 6, 2**63 + 1))
times = st.integers(-(2**63), 2**63 - 1)
messages = st.lists(st.tuples(subjects, st.just(b"r"), headers, data), max_size=6)
edges = st.integers(0, 6)

steps = st.one_of(
    st.tuples(st.just("append"), subjects, headers, data, times, seqs),
    st.tuples(st.just("run"), messages, edges, edges),
    st.tuples(
        st.just("block"),
        st.none() | times,
        st.none() | seqs,
        st.none() | st.sets(st.integers(-1, 12)),
    ),
    st.tuples(st.just("clear")),
)


def perform(codec: Any, builder: Any, held: list[bytes], step: tuple[Any, ...]) -> Any:
    """One call; `held` is the block that an append_block step appends."""
    try:
        match step:
            case ("append", subject, header, body, time_ns, seq):
                builder.append(subject, header, body, time_ns=time_ns, seq=seq)
            case ("run", rows, start, stop):
                builder.append_run(codec.PubRun.of(rows), start, stop)
            case ("block", time_ns, first_seq, skip):
                block = codec.Block(held[0])
                builder.append_block(block, time_ns=time_ns, first_seq=first_seq, skip=skip)
            case ("clear",):
                held[0] = builder.build()
                builder.clear()
    except (ValueError, OverflowError, IndexError) as error:
        return type(error)
    return None


def read(rows: Any) -> Any:
    everything = [
        (rows.subject(i), rows.headers(i), rows.data(i), rows.time(i), rows.seq(i))
        for i in range(rows.rows)
    ]
    lookups = [(rows.index_of(seq), rows.first_at_or_after(seq)) for seq in range(45)]
    return (
        everything,
        lookups,
        rows.first_seq,
        rows.last_seq,
        rows.subject_runs(),
        rows.subject_summary(),
        [rows.rows_of(subject) for subject, _, _ in rows.subject_runs()[:5]],
        rows.seqs_of([(i, rows.rows - i % 2) for i in range(rows.rows)]),
        rows.any_nats_header(),
        rows.max_row_size,
        rows.nbytes,
    )


@settings(max_examples=400, deadline=None)
@given(first_seq=st.sampled_from([0, 0, 1, 7]), plan=st.lists(steps, max_size=10))
def test_builders_agree(first_seq: int, plan: list[tuple[Any, ...]]) -> None:
    twin, compiled = TWIN.BlockBuilder(first_seq), COMPILED.BlockBuilder(first_seq)
    twin_held, compiled_held = [TWIN.BlockBuilder().build()], [TWIN.BlockBuilder().build()]
    for step in plan:
        expected = perform(TWIN, twin, twin_held, step)
        assert perform(COMPILED, compiled, compiled_held, step) == expected
        assert read(compiled) == read(twin)
    raw = twin.build()
    assert compiled.build() == raw
    assert compiled.build(seal=False) == twin.build(seal=False)
    assert len(raw) == twin.nbytes
    assert read(COMPILED.Block(raw)) == read(TWIN.Block(raw)) == read(twin)


numbers = st.integers(-5, 5) | st.integers(-(2**62), 2**62)


@settings(max_examples=300, deadline=None)
@given(
    rows=messages,
    indices=st.lists(st.integers(-1, 6), max_size=6),
    counts=st.none() | st.lists(st.integers(1, 2**40), max_size=6),
    consumer_seq=numbers,
    pending=numbers,
    time_ns=times,
    headers_ok=st.booleans(),
)
def test_deliveries_agree(
    *,
    rows: list[Any],
    indices: list[int],
    counts: list[int] | None,
    consumer_seq: int,
    pending: int,
    time_ns: int,
    headers_ok: bool,
) -> None:
    texts = []
    for codec in (TWIN, COMPILED):
        plain = codec.BlockBuilder()
        plain.append_run(codec.PubRun.of(rows), 0, len(rows))
        stamped = codec.BlockBuilder()
        stamped.append_block(codec.Block(plain.build()), time_ns=time_ns, first_seq=7)
        for source in (plain, stamped, codec.Block(stamped.build())):
            try:
                text: Any = codec.encode_deliveries(
                    source, indices, b"1", b"$JS.ACK.S.C", counts, consumer_seq, pending, headers_ok
                )
            except (IndexError, ValueError) as error:
                text = type(error)
            texts.append(text)
    assert texts[:3] == texts[3:]


# -- messages of an origin ---------------------------------------------------------------------

numbers = st.sampled_from([b"1", b"2", b"3", b"7", b"", b"x", b"9" * 18, b"9" * 19, b"9" * 20])
replies = st.tuples(
    st.sampled_from([b"$JS.ACK.S.c.1", b"$JS.ACK.d.h.S.c.1", b"$JS.ACK.S", b"other"]),
    numbers, st.sampled_from([b"1", b"2", b"2"]), numbers, numbers,
).map(b".".join)  # fmt: skip
deliveries = st.one_of(
    st.tuples(subjects, replies, headers, data).map(
        lambda m: (
            b"HMSG %b 1 %b %d %d\r\n%b%b\r\n"
            % (m[0], m[1], len(m[2]), len(m[2]) + len(m[3]), m[2], m[3])
        )
    ),
    st.tuples(subjects, replies, data).map(
        lambda m: b"MSG %b 1 %b %d\r\n%b\r\n" % (m[0], m[1], len(m[2]), m[2])
    ),
    st.sampled_from([b"MSG a 1 $JS.ACK.S.c.1.1.1.5.0 3\r\nabcd", b"PING\r\n", b"MSG", b"\r"]),
)


@settings(max_examples=300)
@given(st.lists(deliveries, max_size=5), st.integers(0, 3), st.integers(0, 40), st.integers(1, 4))
def test_deliveries_are_read_alike(parts: list[bytes], cut: int, at: int, rows: int) -> None:
    received = b"".join(parts)
    received = received[: len(received) - cut]
    found = []
    for codec in (TWIN, COMPILED):
        builder = codec.BlockBuilder()
        where = codec.append_delivered(
            builder, received, min(at, len(received)) if at > 30 else 0,
            expected=1, rows_max=rows, bytes_max=1000,
        )  # fmt: skip
        found.append((where, builder.build()))
    assert found[0] == found[1]


def test_a_run_of_deliveries_is_read_in_one_call() -> None:
    one = b"MSG a.b 1 $JS.ACK.S.c.1.%d.%d.%d.%d 2\r\nhi\r\n"
    received = b"".join(one % (seq, seq - 4, 2**62 + seq, 9 - seq) for seq in (5, 6, 7))
    for codec in (TWIN, COMPILED):
        builder = codec.BlockBuilder()
        stop = codec.append_delivered(
            builder, received + b"HMSG", 0, expected=1, rows_max=10, bytes_max=1 << 20
        )
        assert stop == (len(received), 2)
        assert [builder.seq(i) for i in range(3)] == [5, 6, 7]
        assert (builder.subject(2), builder.data(2), builder.time(2)) == (b"a.b", b"hi", 2**62 + 7)


@given(st.lists(st.tuples(subjects, headers, data), max_size=5), st.integers(1, 10**18))
def test_source_headers_are_added_alike(rows: list[tuple[bytes, bytes, bytes]], seq: int) -> None:
    found = []
    for codec in (TWIN, COMPILED):
        origin, builder = codec.BlockBuilder(seq), codec.BlockBuilder()
        for subject, header, body in rows:
            origin.append(subject, header, body, time_ns=seq)
        block = codec.Block(origin.build())
        codec.append_sourced(builder, block, head=b"Nats-Stream-Source: S ", tail=b" > > ")
        found.append(builder.build())
    assert found[0] == found[1]


@settings(deadline=None)
@given(
    names=st.lists(dotted | st.sampled_from([b"", b"a.", b".a", b"a..b"]), max_size=9),
    patterns=st.lists(dotted, min_size=1, max_size=3),
)
def test_the_same_rows_match_patterns(names: list[bytes], patterns: list[bytes]) -> None:
    matched = [any(matcher(pattern)(name) for pattern in patterns) for name in names]
    for codec in (TWIN, COMPILED):
        builder = codec.BlockBuilder()
        for name in names:
            builder.append(name, b"", b"", time_ns=1)
        found = codec.Block(builder.build()).rows_matching(patterns)
        rows = [row for start, stop in found for row in range(start, stop)]
        assert rows == [row for row, fits in enumerate(matched) if fits]
        assert all(one[1] < other[0] for one, other in pairwise(found))
