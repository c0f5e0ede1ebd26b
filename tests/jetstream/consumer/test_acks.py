"""Ack subjects, ack payloads, durations, runs of sequences, and the ack state."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.jetstream.commands.consumer_commands import from_runs, to_runs
from broker.jetstream.consumer.ack_floor import AckFloor
from broker.jetstream.consumer.ack_subjects import (
    AckKind,
    classify,
    nak_delay_ns,
    next_request,
    parse_ack_subject,
    term_reason,
)
from broker.jetstream.times import parse_go_duration


@pytest.mark.parametrize(
    ("subject", "parsed"),
    [
        (b"$JS.ACK.S.C.1.2.3.4.5", (b"S", b"C", 1, 2, 3, 4, 5)),
        (b"$JS.ACK.S.C.1.1_0.3.4.5", None),
        (b"$JS.ACK.S.C.1.+2.3.4.5", None),
        (b"$JS.ACK.S.C.1.2.3.4." + b"9" * 21, None),
        (b"$JS.ACK._.hash.S.C.1.2.3.4.5", (b"S", b"C", 1, 2, 3, 4, 5)),
        (b"$JS.ACK.hub.hash.S.C.1.2.3.4.5.token.more", (b"S", b"C", 1, 2, 3, 4, 5)),
        (b"$JS.ACK.S.C.1.2.3.4", None),
        (b"$JS.ACK.S.C.1.2.3.4.5.6", None),
        (b"$JS.ACK.S.C.1.two.3.4.5", None),
        (b"$JS.NAK.S.C.1.2.3.4.5", None),
        (b"", None),
    ],
)
def test_ack_subject_is_parsed_in_both_versions(subject: bytes, parsed: object) -> None:
    assert parse_ack_subject(subject) == parsed


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (b"", AckKind.ACK),
        (b"+ACK", AckKind.ACK),
        (b"+OK", AckKind.ACK),
        (b"-NAK", AckKind.NAK),
        (b'-NAK {"delay": 1}', AckKind.NAK),
        (b"+WPI", AckKind.IN_PROGRESS),
        (b"+WPI ", AckKind.OTHER),
        (b"+TERM", AckKind.TERM),
        (b"+TERM for a reason", AckKind.TERM),
        (b"+NXT 5", AckKind.NEXT),
        (b"hello", AckKind.OTHER),
    ],
)
def test_ack_payload_is_classified(payload: bytes, kind: AckKind) -> None:
    assert classify(payload) is kind


def test_ack_payload_arguments() -> None:
    assert term_reason(b"+TERM bad input ") == "bad input"
    assert next_request(b'+NXT {"batch":2}') == b'{"batch":2}'
    assert next_request(b"+NXT") == b""


@pytest.mark.parametrize(
    ("payload", "delay"),
    [
        (b"-NAK", None),
        (b"-NAK  ", None),
        (b'-NAK {"delay": 300}', 300),
        (b'-NAK {"delay": "300"}', None),
        (b"-NAK {", None),
        (b"-NAK 10s", 10_000_000_000),
        (b"-NAK 1m30s", 90_000_000_000),
        (b"-NAK soon", None),
    ],
)
def test_invalid_nak_delay_is_none(payload: bytes, delay: int | None) -> None:
    assert nak_delay_ns(payload) == delay


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0", 0),
        ("1ns", 1),
        ("1.5us", 1500),
        ("2\u00b5s", 2000),
        ("2\u03bcs", 2000),
        (".5s", 500_000_000),
        ("1.s", 1_000_000_000),
        ("1h1m1s1ms", 3_661_001_000_000),
        ("-1.5h", -5_400_000_000_000),
        ("+2s", 2_000_000_000),
        ("", None),
        ("-", None),
        ("3", None),
        ("3 s", None),
        ("s", None),
        (".s", None),
        ("10000000h", None),
        ("9" * 5000 + "ns", None),
        ("0" * 5000 + "1ns", 1),
        ("1." + "9" * 5000 + "s", 1_999_999_999),
    ],
)
def test_go_duration(text: str, ns: int | None) -> None:
    assert parse_go_duration(text) == ns


@given(st.lists(st.integers(1, 60)))
def test_runs_hold_exactly_the_sequences(sequences: list[int]) -> None:
    runs = to_runs(sequences)
    assert from_runs(runs) == sorted(set(sequences))
    assert all(runs[i] + runs[i + 1] < runs[i + 2] for i in range(0, len(runs) - 2, 2)), (
        "adjacent runs must be merged"
    )


def test_ack_state_round_trips_through_pack() -> None:
    state = AckFloor(10)
    state.deliver(11, 15, consumer_seq=1)
    state.deliver_again(12, deliveries=2)
    state.delivered_up_to(stream_seq=15, consumer_seq=6)
    state.exhaust([13])
    state.ack([11])
    copy = AckFloor.unpack(state.pack())
    assert copy.pack() == state.pack()
    for each in (state, copy):
        assert each.ack([12, 13, 99]) == [12, 13]
        assert (each.floor_consumer_seq, each.floor_stream_seq) == (3, 13)


@given(st.lists(st.tuples(st.sampled_from(["deliver", "ack", "up_to", "exhaust", "remove",
                                           "range", "pass"]), st.integers(1, 30),
                          st.integers(1, 6))))  # fmt: skip
def test_floor_never_falls_and_stays_below_pending(script: list[tuple[str, int, int]]) -> None:
    state = AckFloor()
    floor = (0, 0)
    for verb, seq, count in script:
        match verb:
            case "deliver":
                first = state.stream_seq + 1 + seq % 3
                last = first + count - 1
                state.deliver(first, last, consumer_seq=state.consumer_seq + 1)
            case "ack":
                state.ack(range(seq, seq + count))
            case "up_to":
                state.ack_up_to(seq, consumer_seq=seq)
            case "exhaust":
                state.exhaust(range(seq, seq + count))
            case "remove":
                state.remove(range(seq, seq + count))
            case "range":
                state.remove_range(seq, seq + count)
            case _:
                state.pass_over(state.stream_seq + count)
        now = (state.floor_consumer_seq, state.floor_stream_seq)
        assert now[0] >= floor[0]
        assert now[1] >= floor[1]
        assert now[1] <= state.stream_seq
        assert now[0] <= state.consumer_seq
        assert all(seq > now[1] for seq in state.pending)
        assert not state.exhausted & state.pending.keys()
        assert state.redelivered.keys() <= state.pending.keys() | state.exhausted
        floor = now
