"""Counter streams: every message adds to the value of its subject.

Owns: increments, the value a subject has, the body that is stored for it.
May not touch: other checks, storing.
Spec: JetStream sheet 3.6; values are integers of any size, as text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.message import Message
from broker.wire import headers as wire_headers

if TYPE_CHECKING:
    from broker.jetstream.stream import Stream

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


def wrong_increment(stream: Stream, message: Message) -> JetStreamError | None:
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


def increment_of(message: Message) -> int | None:
    text = message.named.get(INCREMENT, b"")
    if len(text) > _DIGITS_MAX or _NUMBER.fullmatch(text) is None:
        return None
    return int(text)


def add_up(stream: Stream, message: Message, staged: dict[bytes, int]) -> JetStreamError | None:
    """Give the message the body of its new value. `staged` holds the values of subjects that
    earlier members of its batch have changed, and gets this one's."""
    increment = increment_of(message)
    if increment is None:
        return JetStreamError(ErrCode.MESSAGE_INCR_MISSING)
    found = stream.store.rows(stream.store.last_of_subject(message.subject))
    total = staged.get(message.subject)
    if found is not None:
        try:
            value = _number(_value.decode(found[0].data(found[1])).val)
            known = wire_headers.get(found[0].headers(found[1]), SOURCES)
            if known:
                _sources.decode(known)
        except msgspec.MsgspecError:
            return JetStreamError(ErrCode.MESSAGE_COUNTER_BROKEN)
        if known:
            message.set_header(SOURCES, known)
        total = value if total is None else total
    total = (total or 0) + increment
    if total.bit_length() > _BITS_MAX:
        return JetStreamError(ErrCode.STREAM_MESSAGE_EXCEEDS_MAXIMUM)
    staged[message.subject] = total
    message.data = b'{"val":"%d"}' % total
    return None


def value_of(data: bytes) -> str:
    """For the ack of a message that `add_up` has prepared."""
    return _value.decode(data).val


def _number(text: str) -> int:
    if len(text) > _DIGITS_MAX + 256:
        raise msgspec.ValidationError("longer than any value stored here")
    return int(text) if _NUMBER.fullmatch(text.encode()) else 0
