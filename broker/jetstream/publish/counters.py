"""Counter streams: every message adds to the value of its subject.

Owns: increments, the current value of a subject, and the body that is stored for it.
May not touch: other checks, storing.
Spec: NATS ADR-49 (distributed counters); values are integers of any size, as text."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec

from broker.jetstream.config import StreamConfig
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.incoming_message import IncomingMessage
from broker.store.block.codec import Rows
from broker.wire import headers as wire_headers

INCREMENT: Final = b"Nats-Incr"
SOURCES: Final = b"Nats-Counter-Sources"
_NUMBER: Final = re.compile(rb"[+-]?[0-9]+")
_DIGITS_MAX: Final = 4096  # of an increment; int() refuses texts of more than 4300 digits
_BITS_MAX: Final = 14_000  # of a value, so that its text stays below the same limit
_CLASHING: Final = (
    b"Nats-Rollup",
    b"Nats-Expected-Stream",
    b"Nats-Expected-Last-Msg-Id",
    b"Nats-Expected-Last-Subject-Sequence-Subject",
    b"Nats-Expected-Last-Sequence",
    b"Nats-Expected-Last-Subject-Sequence",
)

Sources = dict[str, dict[str, str]]  # origin stream -> subject there -> value last seen
LastRow = Callable[[bytes], tuple[Rows, int] | None]  # MessageStore.last_row


class CounterValue(msgspec.Struct, frozen=True):
    """The body of a counter message."""

    val: str = ""


_value: Final = msgspec.json.Decoder(CounterValue)
_sources: Final = msgspec.json.Decoder(Sources)
_encode: Final = msgspec.json.Encoder(order="sorted").encode


# Errors of decoding a client's body or header. The last two are not msgspec errors; an exception
# that leaves `apply` would stop the stream on every replica.
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def wrong_increment(config: StreamConfig, message: IncomingMessage) -> JetStreamError | None:
    """Refusals that depend only on the message and the configuration."""
    text = message.named.get(INCREMENT)
    if not text:
        return None
    if increment_of(message) is None:
        return JetStreamError(ErrCode.MESSAGE_INCR_INVALID)
    if not config.allow_msg_counter:
        return JetStreamError(ErrCode.MESSAGE_INCR_DISABLED)
    if message.data:
        return JetStreamError(ErrCode.MESSAGE_INCR_PAYLOAD)
    if any(message.named.get(name) for name in _CLASHING):
        return JetStreamError(ErrCode.MESSAGE_INCR_INVALID)
    return None


def increment_of(message: IncomingMessage) -> int | None:
    text = message.named.get(INCREMENT, b"")
    if len(text) > _DIGITS_MAX or _NUMBER.fullmatch(text) is None:
        return None
    return int(text)


def add_up(
    message: IncomingMessage, staged: dict[bytes, int], last_row: LastRow
) -> JetStreamError | None:
    """Replace the body of the message by the new value of its counter.

    `staged` holds the values that earlier members of the same batch lead to, by subject; the new
    value is added to it."""
    increment = increment_of(message)
    if increment is None:
        return JetStreamError(ErrCode.MESSAGE_INCR_MISSING)
    last = _last(message.subject, last_row)
    if last is None:
        return JetStreamError(ErrCode.MESSAGE_COUNTER_BROKEN)
    value, sources = last
    total = staged.get(message.subject, value) + increment
    refused = _give_value(message, total, sources)
    if refused is None:
        staged[message.subject] = total
    return refused


def add_sourced(message: IncomingMessage, last_row: LastRow) -> JetStreamError | None:
    """As `add_up` for a counter of a source: adds what it has grown by since it was last seen."""
    last = _last(message.subject, last_row)
    theirs = _read(message.data)
    if last is None or theirs is None or increment_of(message) is None:
        return JetStreamError(ErrCode.MESSAGE_COUNTER_BROKEN)
    total, sources = last
    said = message.named.get(b"Nats-Stream-Source", b"").decode(errors="replace").split(" ")
    subject = said[4] if len(said) > 4 else message.subject.decode(errors="replace")
    seen = sources.setdefault(said[0], {})
    try:
        before = _number(seen.get(subject, "0"))
    except msgspec.ValidationError:
        return JetStreamError(ErrCode.MESSAGE_COUNTER_BROKEN)
    seen[subject] = str(theirs)
    message.set_header(INCREMENT, b"%d" % (theirs - before))
    return _give_value(message, total + theirs - before, sources)


def _give_value(message: IncomingMessage, total: int, sources: Sources) -> JetStreamError | None:
    if total.bit_length() > _BITS_MAX:
        return JetStreamError(ErrCode.STREAM_MESSAGE_EXCEEDS_MAXIMUM)
    message.data = b'{"val":"%d"}' % total
    if sources:
        message.set_header(SOURCES, _encode(sources))
    return None


def _last(subject: bytes, last_row: LastRow) -> tuple[int, Sources] | None:
    """Value and sources of a subject; None if its last message is not a valid counter."""
    found = last_row(subject)
    if found is None:
        return 0, {}
    value = _read(found[0].data(found[1]))
    known = wire_headers.get(found[0].headers(found[1]), SOURCES)
    try:
        sources = _sources.decode(known) if known else {}
    except _UNREADABLE:
        return None
    return None if value is None else (value, sources)


def _read(data: bytes) -> int | None:
    try:
        return _number(_value.decode(data).val)
    except _UNREADABLE:
        return None


def value_of(data: bytes) -> str:
    """The counter value in a body that `add_up` made; the publish ack shows it."""
    return _value.decode(data).val


def _number(text: str) -> int:
    if len(text) > _DIGITS_MAX + 200:
        raise msgspec.ValidationError("longer than any value stored here")
    return int(text) if _NUMBER.fullmatch(text.encode()) else 0
