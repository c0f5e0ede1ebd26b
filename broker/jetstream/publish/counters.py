"""Counter streams: every message adds to the value of its subject.

Owns: increments, the value a subject has, the body that is stored for it.
May not touch: other checks, storing.
Spec: JetStream sheet 3.6; values are integers of any size, as text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.publish.message import IncomingMessage
from broker.wire import headers as wire_headers

if TYPE_CHECKING:
    from broker.jetstream.stream.stream import Stream

INCREMENT: Final = b"Nats-Incr"
SOURCES: Final = b"Nats-Counter-Sources"
_NUMBER: Final = re.compile(rb"[+-]?[0-9]+")
_DIGITS_MAX: Final = 4096  # of an increment: Python reads no much longer ones without being asked
_BITS_MAX: Final = 14_000  # of a value, for the same reason
_CLASHING: Final = (
    b"Nats-Rollup",
    b"Nats-Expected-Stream",
    b"Nats-Expected-Last-Msg-Id",
    b"Nats-Expected-Last-Subject-Sequence-Subject",
    b"Nats-Expected-Last-Sequence",
    b"Nats-Expected-Last-Subject-Sequence",
)

Sources = dict[str, dict[str, str]]  # origin stream -> subject there -> value last seen


class Value(msgspec.Struct, frozen=True):
    """The body of a counter message."""

    val: str = ""


_value: Final = msgspec.json.Decoder(Value)
_sources: Final = msgspec.json.Decoder(Sources)
_encode: Final = msgspec.json.Encoder(order="sorted").encode


def wrong_increment(stream: Stream, message: IncomingMessage) -> JetStreamError | None:
    """Refusals that depend on the message alone."""
    text = message.named.get(INCREMENT)
    if not text:
        return None
    if increment_of(message) is None:
        return JetStreamError(ErrCode.MESSAGE_INCR_INVALID)
    if not stream.config.allow_msg_counter:
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
    stream: Stream, message: IncomingMessage, staged: dict[bytes, int]
) -> JetStreamError | None:
    """Give the message the body of its new value. `staged` holds the values of subjects that
    earlier members of its batch have changed, and gets this one's."""
    increment = increment_of(message)
    if increment is None:
        return JetStreamError(ErrCode.MESSAGE_INCR_MISSING)
    last = _last(stream, message.subject)
    if last is None:
        return JetStreamError(ErrCode.MESSAGE_COUNTER_BROKEN)
    value, sources = last
    total = staged.get(message.subject, value) + increment
    refused = _give_value(message, total, sources)
    if refused is None:
        staged[message.subject] = total
    return refused


def add_sourced(stream: Stream, message: IncomingMessage) -> JetStreamError | None:
    """A counter of another stream: what it has grown by since we saw it last counts here."""
    last = _last(stream, message.subject)
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


def _last(stream: Stream, subject: bytes) -> tuple[int, Sources] | None:
    """Value and sources of a subject; None when its last message has no value to go on from."""
    found = stream.store.rows(stream.store.last_of_subject(subject))
    if found is None:
        return 0, {}
    value = _read(found[0].data(found[1]))
    known = wire_headers.get(found[0].headers(found[1]), SOURCES)
    try:
        sources = _sources.decode(known) if known else {}
    except msgspec.MsgspecError:
        return None
    return None if value is None else (value, sources)


def _read(data: bytes) -> int | None:
    try:
        return _number(_value.decode(data).val)
    except msgspec.MsgspecError:
        return None


def value_of(data: bytes) -> str:
    """For the ack of a message that `add_up` has prepared."""
    return _value.decode(data).val


def _number(text: str) -> int:
    if len(text) > _DIGITS_MAX + 200:
        raise msgspec.ValidationError("longer than any value stored here")
    return int(text) if _NUMBER.fullmatch(text.encode()) else 0
