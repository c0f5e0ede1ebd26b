"""Plain acks of a run in bulk: both codecs find the same ones, and only those."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.wire import _run, run_py

RUNS: list[Any] = [run_py.PubRun, _run.PubRun]


def ack(stream: str, consumer: str, seq: int, consumer_seq: int) -> bytes:
    return f"$JS.ACK.{stream}.{consumer}.1.{seq}.{consumer_seq}.1700000000.9".encode()


@pytest.mark.parametrize("run", RUNS)
def test_acks_are_grouped_by_consumer_in_order(run: Any) -> None:
    messages = [
        (ack("S", "a", 5, 1), b"", b"", b""),
        (ack("S", "a", 7, 2), b"", b"", b"+ACK"),
        (ack("S", "b", 7, 1), b"", b"", b""),
        (ack("S", "a", 8, 3), b"", b"", b""),
    ]
    groups = [
        (b"S", b"a", [5, 7], [1, 2]),
        (b"S", b"b", [7], [1]),
        (b"S", b"a", [8], [3]),
    ]
    assert run.of(messages).ack_spans() == [(0, 4, groups)]


OTHERS = [
    (b"orders.new", b"", b"", b""),
    (ack("S", "a", 1, 1), b"reply", b"", b""),
    (ack("S", "a", 1, 1), b"", b"NATS/1.0\r\n\r\n", b""),
    (ack("S", "a", 1, 1), b"", b"", b"-NAK"),
    (ack("S", "a", 1, 1) + b".more", b"", b"", b""),
    (b"$JS.ACK.S.a.1.x.1.1.1", b"", b"", b""),
    (b"$JS.ACK.S.a.1.1..1.1", b"", b"", b""),
    (b"$JS.ACK.S.a.1.%b.1.1.1" % (b"9" * 19), b"", b"", b""),
    (b"$JS.ACK.", b"", b"", b""),
]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("other", OTHERS, ids=repr)
def test_anything_else_is_left_to_the_router(run: Any, other: Any) -> None:
    plain = (ack("S", "a", 1, 1), b"", b"", b"")
    group = [(b"S", b"a", [1], [1])]
    assert run.of([plain, other, plain]).ack_spans() == [(0, 1, group), (2, 3, group)]
    assert run.of([other]).ack_spans() == []


tokens = st.sampled_from(
    [b"$JS", b"ACK", b"S", b"c", b"1", b"27", b"", b"x1", b"999999999999999999"]
)
subjects = st.one_of(
    st.lists(tokens, min_size=1, max_size=11).map(b".".join),
    st.lists(tokens, min_size=7, max_size=7).map(lambda t: b"$JS.ACK." + b".".join(t)),
)
messages = st.lists(
    st.tuples(
        subjects, st.sampled_from([b"", b"r"]), st.just(b""), st.sampled_from([b"", b"+ACK", b"x"])
    ),
    max_size=4,
)


@given(messages)
def test_both_codecs_agree(run: list[tuple[bytes, bytes, bytes, bytes]]) -> None:
    assert run_py.PubRun.of(run).ack_spans() == _run.PubRun.of(run).ack_spans()
