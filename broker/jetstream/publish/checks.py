"""The checks of one published message, in nats-server's order.

Owns: why a message is refused, except for limits (stream_limits.py), counters (counters.py) and
schedules (broker/jetstream/schedules).
May not touch: storing, open batches.
Spec: NATS JetStream, publish headers (Nats-Expected-*, Nats-Msg-Id, Nats-Rollup, Nats-TTL). The
order matters: a client sees the first refusal."""

from __future__ import annotations

from typing import Final

from broker.jetstream.commands.publish_entry import Bounds
from broker.jetstream.config import Storage, StreamConfig
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.incoming_message import TTL_HEADER, IncomingMessage, parse_ttl
from broker.jetstream.publish.counters import INCREMENT, add_up, wrong_increment
from broker.jetstream.publish.dedup_window import DedupWindow
from broker.jetstream.publish.sessions import Duplicate
from broker.jetstream.schedules.schedules import NEXT, PATTERN, SCHEDULER, TIME_ZONE, wrong_schedule
from broker.store.messages import MessageStore
from broker.subjects import has_wildcard

HEADER_BYTES_MAX: Final = 65535
EXPECTED_SUBJECT: Final = b"Nats-Expected-Last-Subject-Sequence-Subject"
RECORD_BYTES_MAX: Final = 32 << 20
BATCH_ID_BYTES_MAX: Final = 64
# A message without any of these headers is neither an increment nor related to a schedule.
_RARE: Final = frozenset({INCREMENT, PATTERN, TIME_ZONE, NEXT, SCHEDULER})
_NOT_A_NUMBER: Final = 2**64 - 1  # what a malformed sequence compares as


def refusal(
    config: StreamConfig, store: MessageStore, dedup: DedupWindow, message: IncomingMessage
) -> JetStreamError | Duplicate | None:
    """The first check that fails, None if the message may be stored. Sets the body of counters."""
    size = len(message.headers) + len(message.data)
    if size > RECORD_BYTES_MAX:
        too_large = exceeds_record(config, message)
        if too_large is not None:
            return too_large
    if config.sealed:
        return JetStreamError(ErrCode.STREAM_SEALED)
    if message.named:
        refused = _refused_by_headers(config, store, dedup, message)
        if refused is not None:
            return refused
    if config.allow_msg_counter:
        broken = add_up(message, {}, store.last_row)
        if broken is not None:
            return broken
        size = message.size
    if 0 <= config.max_msg_size < size:
        return JetStreamError(ErrCode.STREAM_MESSAGE_EXCEEDS_MAXIMUM)
    if len(message.headers) > HEADER_BYTES_MAX:
        return JetStreamError(ErrCode.STREAM_HEADER_EXCEEDS_MAXIMUM)
    return None


def refusal_in_batch(
    config: StreamConfig, store: MessageStore, message: IncomingMessage, bounds: Bounds | None
) -> JetStreamError | None:
    """The first checks of a message of an atomic or fast batch. The batch stays open."""
    if config.sealed:
        return JetStreamError(ErrCode.STREAM_SEALED)
    if bounds is not None and store.bytes > bounds.server:
        return JetStreamError(ErrCode.INSUFFICIENT_RESOURCES)
    no_room = above_account(store, message, bounds)
    if no_room is not None:
        return no_room
    if 0 <= config.max_msg_size < message.size:
        return JetStreamError(ErrCode.STREAM_MESSAGE_EXCEEDS_MAXIMUM)
    return None


def above_account(
    store: MessageStore, message: IncomingMessage, bounds: Bounds | None
) -> JetStreamError | None:
    """Refused if the message would exceed the storage limit of the account."""
    if bounds is None:
        return None
    size = store.sizing.of(message.subject, message.headers, message.data)
    if store.bytes + size <= bounds.account:
        return None
    return JetStreamError(ErrCode.ACCOUNT_RESOURCES_EXCEEDED)


def exceeds_record(config: StreamConfig, message: IncomingMessage) -> JetStreamError | None:
    if config.storage is Storage.FILE and message.size > RECORD_BYTES_MAX:
        return JetStreamError.of(ErrCode.STREAM_STORE_FAILED, err="message too large")
    return None


def _refused_by_headers(
    config: StreamConfig, store: MessageStore, dedup: DedupWindow, message: IncomingMessage
) -> JetStreamError | Duplicate | None:
    named = message.named
    plain = named.keys().isdisjoint(_RARE)
    refused = None if plain else wrong_increment(config, message)
    if refused is not None:
        return refused
    if named.get(b"Nats-Expected-Stream", b"") not in (b"", config.name.encode()):
        return JetStreamError(ErrCode.STREAM_NOT_MATCH)
    if TTL_HEADER in named and not config.allow_msg_ttl and _is_ttl(message):
        return JetStreamError(ErrCode.MESSAGE_TTL_DISABLED)
    refused = wrong_subject_sequence(store, message) or _wrong_sequence(store, message)
    if refused is not None:
        return refused
    refused = None if plain else wrong_schedule(config, message, {}, store.last_row)
    if refused is not None:
        return refused
    if b"Nats-Stream-Source" in named:
        return JetStreamError(ErrCode.MESSAGE_SOURCE_HDR_NOT_ALLOWED)
    return _wrong_id(config, dedup, message) or wrong_rollup(config, message)


def _is_ttl(message: IncomingMessage) -> bool:
    """Whether the message has a TTL. By rules 0, any value counts; an invalid one is refused later
    (message_writer.py)."""
    return not message.rules or parse_ttl(message.named[TTL_HEADER]) is not None


def _wrong_id(
    config: StreamConfig, dedup: DedupWindow, message: IncomingMessage
) -> JetStreamError | Duplicate | None:
    if message.msg_id and config.duplicate_window > 0:
        original = dedup.find(message.msg_id)
        if original:
            return Duplicate(original)
    expected = message.named.get(b"Nats-Expected-Last-Msg-Id", b"")
    if expected and expected != dedup.last_id:
        actual = dedup.last_id.decode(errors="replace")
        return JetStreamError.of(ErrCode.STREAM_WRONG_LAST_MSG_ID, id=actual)
    return None


def wrong_subject_sequence(store: MessageStore, message: IncomingMessage) -> JetStreamError | None:
    expected = message.named.get(b"Nats-Expected-Last-Subject-Sequence")
    other = message.named.get(EXPECTED_SUBJECT, b"")
    if expected is None:
        if other:
            return JetStreamError(ErrCode.STREAM_EXPECTED_LAST_SEQ_PER_SUBJECT_INVALID)
        return None
    subject = other or message.subject
    if has_wildcard(subject):
        actual = store.last_matches.find(subject)  # the search was done in `prepare`
    else:
        actual = store.last_of_subject(subject)
    return compare_sequence(expected, actual)


def _wrong_sequence(store: MessageStore, message: IncomingMessage) -> JetStreamError | None:
    expected = message.named.get(b"Nats-Expected-Last-Sequence")
    return None if expected is None else compare_sequence(expected, store.last_seq)


def compare_sequence(expected: bytes, actual: int) -> JetStreamError | None:
    """Compare an expected sequence, as it is in a header, with the actual one."""
    number = int(expected) if expected.isdigit() and len(expected) <= 20 else _NOT_A_NUMBER
    if number == actual:
        return None
    return JetStreamError.of(ErrCode.STREAM_WRONG_LAST_SEQUENCE, seq=actual)


def wrong_rollup(config: StreamConfig, message: IncomingMessage) -> JetStreamError | None:
    value = message.named.get(b"Nats-Rollup")
    if value is None:
        return None
    if not config.allow_rollup_hdrs or config.deny_purge:
        return rollup_failed("rollup not permitted")
    if value.lower() not in (b"sub", b"all"):
        text = value.lower().decode(errors="replace")
        return rollup_failed(f'rollup value invalid: "{text}"')
    return None


def rollup_failed(reason: str) -> JetStreamError:
    return JetStreamError.of(ErrCode.STREAM_ROLLUP_FAILED, err=reason)
