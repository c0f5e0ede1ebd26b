"""What a publish may be refused for.

Owns: the checks of one message, in their order.
May not touch: storing, where batches wait.
Spec: JetStream sheet 3.2 (headers), 3.3 (check order of a single server)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.jetstream.commands.publish_entry import Bounds
from broker.jetstream.config import Discard, Storage
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.publish.counters import INCREMENT, add_up, wrong_increment
from broker.jetstream.publish.message import IncomingMessage
from broker.jetstream.publish.sessions import Duplicate
from broker.jetstream.schedules.schedules import NEXT, PATTERN, SCHEDULER, TIME_ZONE, wrong_schedule
from broker.subjects import has_wildcard

if TYPE_CHECKING:
    from broker.jetstream.stream.stream import Stream

HEADER_BYTES_MAX: Final = 65535
RECORD_BYTES_MAX: Final = 32 << 20
BATCH_ID_BYTES_MAX: Final = 64
# Without one of these no message is an increment or has to do with a schedule.
_RARE: Final = frozenset({INCREMENT, PATTERN, TIME_ZONE, NEXT, SCHEDULER})
_NOT_A_NUMBER: Final = 2**64 - 1  # what a malformed sequence compares as


def refusal(stream: Stream, message: IncomingMessage) -> JetStreamError | Duplicate | None:
    """Checks 1 to 14, in the order of a single server. Counters get their body here."""
    config, size = stream.config, len(message.headers) + len(message.data)
    if size > RECORD_BYTES_MAX:
        too_large = exceeds_record(stream, message)
        if too_large is not None:
            return too_large
    if config.sealed:
        return JetStreamError(ErrCode.STREAM_SEALED)
    if message.named:
        refused = _refused_by_headers(stream, message)
        if refused is not None:
            return refused
    if config.allow_msg_counter:
        broken = add_up(stream, message, {})
        if broken is not None:
            return broken
        size = message.size
    if 0 <= config.max_msg_size < size:
        return JetStreamError(ErrCode.STREAM_MESSAGE_EXCEEDS_MAXIMUM)
    if len(message.headers) > HEADER_BYTES_MAX:
        return JetStreamError(ErrCode.STREAM_HEADER_EXCEEDS_MAXIMUM)
    return None


def refusal_in_batch(
    stream: Stream, message: IncomingMessage, bounds: Bounds | None
) -> JetStreamError | None:
    """What messages of both kinds of batches are refused for first; open ones go on."""
    config = stream.config
    if config.sealed:
        return JetStreamError(ErrCode.STREAM_SEALED)
    if bounds is not None and stream.store.bytes > bounds.server:
        return JetStreamError(ErrCode.INSUFFICIENT_RESOURCES)
    no_room = above_account(stream, message, bounds)
    if no_room is not None:
        return no_room
    if 0 <= config.max_msg_size < message.size:
        return JetStreamError(ErrCode.STREAM_MESSAGE_EXCEEDS_MAXIMUM)
    return None


def above_account(
    stream: Stream, message: IncomingMessage, bounds: Bounds | None
) -> JetStreamError | None:
    """The account has no room for this message."""
    if bounds is None:
        return None
    store = stream.store
    size = store.sizing.of(message.subject, message.headers, message.data)
    if store.bytes + size <= bounds.account:
        return None
    return JetStreamError(ErrCode.ACCOUNT_RESOURCES_EXCEEDED)


def exceeds_record(stream: Stream, message: IncomingMessage) -> JetStreamError | None:
    if stream.config.storage is Storage.FILE and message.size > RECORD_BYTES_MAX:
        return JetStreamError.of(ErrCode.STREAM_STORE_FAILED, err="message too large")
    return None


def _refused_by_headers(
    stream: Stream, message: IncomingMessage
) -> JetStreamError | Duplicate | None:
    named, config = message.named, stream.config
    plain = named.keys().isdisjoint(_RARE)
    refused = None if plain else wrong_increment(stream, message)
    if refused is not None:
        return refused
    if named.get(b"Nats-Expected-Stream", b"") not in (b"", config.name.encode()):
        return JetStreamError(ErrCode.STREAM_NOT_MATCH)
    if b"Nats-TTL" in named and not config.allow_msg_ttl:
        return JetStreamError(ErrCode.MESSAGE_TTL_DISABLED)
    refused = wrong_subject_sequence(stream, message) or _wrong_sequence(stream, message)
    if refused is not None:
        return refused
    refused = None if plain else wrong_schedule(stream, message, {})
    if refused is not None:
        return refused
    if b"Nats-Stream-Source" in named:
        return JetStreamError(ErrCode.MESSAGE_SOURCE_HDR_NOT_ALLOWED)
    return _wrong_id(stream, message) or wrong_rollup(stream, message)


def _wrong_id(stream: Stream, message: IncomingMessage) -> JetStreamError | Duplicate | None:
    if message.msg_id and stream.config.duplicate_window > 0:
        original = stream.dedup.find(message.msg_id)
        if original:
            return Duplicate(original)
    expected = message.named.get(b"Nats-Expected-Last-Msg-Id", b"")
    if expected and expected != stream.last_msg_id:
        actual = stream.last_msg_id.decode(errors="replace")
        return JetStreamError.of(ErrCode.STREAM_WRONG_LAST_MSG_ID, id=actual)
    return None


def wrong_subject_sequence(stream: Stream, message: IncomingMessage) -> JetStreamError | None:
    expected = message.named.get(b"Nats-Expected-Last-Subject-Sequence")
    other = message.named.get(b"Nats-Expected-Last-Subject-Sequence-Subject", b"")
    if expected is None:
        if other:
            return JetStreamError(ErrCode.STREAM_EXPECTED_LAST_SEQ_PER_SUBJECT_INVALID)
        return None
    subject = other or message.subject
    if has_wildcard(subject):
        actual = stream.store.last_matching((subject,))
    else:
        actual = stream.store.last_of_subject(subject)
    return compare(expected, actual)


def _wrong_sequence(stream: Stream, message: IncomingMessage) -> JetStreamError | None:
    expected = message.named.get(b"Nats-Expected-Last-Sequence")
    return None if expected is None else compare(expected, stream.store.last_seq)


def compare(expected: bytes, actual: int) -> JetStreamError | None:
    """An expected sequence, as text, with the one there is."""
    number = int(expected) if expected.isdigit() and len(expected) <= 20 else _NOT_A_NUMBER
    if number == actual:
        return None
    return JetStreamError.of(ErrCode.STREAM_WRONG_LAST_SEQUENCE, seq=actual)


def wrong_rollup(stream: Stream, message: IncomingMessage) -> JetStreamError | None:
    value = message.named.get(b"Nats-Rollup")
    if value is None:
        return None
    if not stream.config.allow_rollup_hdrs or stream.config.deny_purge:
        return rollup_failed("rollup not permitted")
    if value.lower() not in (b"sub", b"all"):
        text = value.lower().decode(errors="replace")
        return rollup_failed(f'rollup value invalid: "{text}"')
    return None


def rollup_failed(reason: str) -> JetStreamError:
    return JetStreamError.of(ErrCode.STREAM_ROLLUP_FAILED, err=reason)


def full(stream: Stream, message: IncomingMessage) -> JetStreamError | None:
    """Why a stream that discards new messages does not take this one.

    A message that replaces the oldest of its subject needs no room of its own."""
    config, store = stream.config, stream.store
    if config.discard is not Discard.NEW:
        return None
    per_subject = config.max_msgs_per_subject
    entry = store.index.get(message.subject) if per_subject > 0 else None
    replaces = entry is not None and entry.count >= per_subject
    if replaces and config.discard_new_per_subject and b"Nats-Rollup" not in message.named:
        return not_stored("maximum messages per subject exceeded")
    if 0 < config.max_msgs <= store.messages and not replaces:
        return not_stored("maximum messages exceeded")
    size = store.sizing.of(message.subject, message.headers, message.data)
    if 0 < config.max_bytes < store.bytes + size:
        oldest = store.subject_state(message.subject) if replaces else None
        found = store.rows(oldest[1]) if oldest is not None else None
        if found is None or store.sizing.of_row(*found) < size:
            return not_stored("maximum bytes exceeded")
    return None


def not_stored(reason: str) -> JetStreamError:
    return JetStreamError.of(ErrCode.STREAM_STORE_FAILED, err=reason)
