"""Acknowledgement subjects and payloads: their grammar.

Owns: parsing `$JS.ACK...` subjects and ack payloads; acting on them is ack_collector's job.
May not touch: consumer state, pull requests (the argument of `+NXT` is passed on unparsed).
Spec: JetStream acknowledgements; `$JS.ACK` version 1 (9 tokens) and version 2 (11 or more)."""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from broker.jetstream.times import parse_go_duration
from broker.wire import headers as wire_headers

AckSubject = tuple[bytes, bytes, int, int, int, int, int]

_V1_TOKENS: Final = 9
_V2_TOKENS: Final = 11
_DIGITS_MAX: Final = 20  # of a uint64


class AckKind(Enum):
    ACK = "ack"
    NAK = "nak"
    IN_PROGRESS = "in progress"
    TERM = "term"
    NEXT = "next"
    OTHER = "other"  # unknown: no action, but a requested confirmation is sent


PLAIN_ACKS: Final = frozenset((b"", b"+ACK", b"+OK"))


def parse_ack_subject(subject: bytes) -> AckSubject | None:
    """(stream, consumer, delivered, stream seq, consumer seq, time ns, pending), or None."""
    tokens = subject.split(b".")
    if len(tokens) != _V1_TOKENS:
        if len(tokens) < _V2_TOKENS:
            return None
        del tokens[_V2_TOKENS:], tokens[2:4]
    root, verb, stream, consumer, delivered, stream_seq, consumer_seq, time_ns, pending = tokens
    if verb != b"ACK" or root != b"$JS":
        return None
    numbers = (delivered, stream_seq, consumer_seq, time_ns, pending)
    if not all(number.isdigit() and len(number) <= _DIGITS_MAX for number in numbers):
        return None  # int() accepts more than digits: signs, underscores
    return (
        stream,
        consumer,
        int(delivered),
        int(stream_seq),
        int(consumer_seq),
        int(time_ns),
        int(pending),
    )


def has_ack_form(subject: bytes) -> bool:
    """Whether the subject has as many tokens as an ack. The server subscribes to all of these."""
    count = subject.count(b".") + 1
    return count == _V1_TOKENS or count >= _V2_TOKENS


def classify(payload: bytes) -> AckKind:
    """What an acknowledgement payload asks for."""
    if payload in PLAIN_ACKS:
        return AckKind.ACK
    if payload.startswith(b"-NAK"):
        return AckKind.NAK
    if payload == b"+WPI":
        return AckKind.IN_PROGRESS
    if payload.startswith(b"+TERM"):
        return AckKind.TERM
    if payload.startswith(b"+NXT"):
        return AckKind.NEXT
    return AckKind.OTHER


def term_reason(payload: bytes) -> str:
    return payload[len(b"+TERM") :].strip().decode(errors="replace")


def next_request(payload: bytes) -> bytes:
    """The pull request body that follows `+NXT`."""
    return payload[len(b"+NXT") :].strip()


class _NakOptions(msgspec.Struct):
    delay: int = 0


def nak_delay_ns(payload: bytes) -> int | None:
    """How long to wait before redelivery; None (a plain NAK) without a valid delay."""
    argument = payload[len(b"-NAK") :].strip()
    if not argument:
        return None
    if argument.startswith(b"{"):
        try:
            return msgspec.json.decode(argument, type=_NakOptions).delay
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
    return parse_go_duration(argument.decode(errors="replace"))


def flow_control_ack(headers: bytes) -> tuple[int, int] | None:
    """(stream sequence, consumer sequence) up to which a flow control answer acks, if it has
    these headers."""
    stream_seq = wire_headers.get(headers, b"Nats-Last-Stream") if headers else None
    consumer_seq = wire_headers.get(headers, b"Nats-Last-Consumer") if headers else None
    if stream_seq is None or consumer_seq is None:
        return None
    if not (stream_seq.isdigit() and consumer_seq.isdigit()) or len(stream_seq) > 19:
        return None
    return int(stream_seq), int(consumer_seq[:19])
