"""Taking published messages into a stream: the checks of one message, and the way without them.

Owns: which checks a publish meets, in which order, and what it is answered.
May not touch: sessions and the log (stream.py), the clock; `time_ns` was stamped by the leader.
Spec: JetStream sheet 3.2 (headers), 3.3 (check order of a single server), 3.4, 3.5, 4.1, 4.2.

A block in which no message needs a check is stored in one call; others go message by message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from broker.jetstream.config import Discard, Retention, Storage
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.retention import enforce_limits
from broker.jetstream.sessions import Duplicate, OutOfOrder, PublishResult
from broker.jetstream.ttl import due_at, parse_ttl
from broker.store.block import Block
from broker.subjects import has_wildcard
from broker.wire import headers as wire_headers

if TYPE_CHECKING:
    from broker.jetstream.stream import Stream

__all__ = ["Duplicate", "OutOfOrder", "PublishResult", "publish_block"]

HEADER_BYTES_MAX: Final = 65535
RECORD_BYTES_MAX: Final = 32 << 20
_NOT_A_NUMBER: Final = 2**64 - 1  # what a malformed sequence compares as

Exceptions = list[tuple[int, JetStreamError | Duplicate]]


@dataclass(slots=True)
class _Message:
    """One publish with the headers that mean something to the stream."""

    subject: bytes
    headers: bytes
    data: bytes
    time_ns: int
    named: dict[bytes, bytes]  # first value of each "Nats-" header

    @property
    def msg_id(self) -> bytes:
        return self.named.get(b"Nats-Msg-Id", b"")


def publish_block(stream: Stream, block: Block, time_ns: int) -> tuple[int, int, Exceptions]:
    """First sequence, number of sequences taken, and the rows that took none."""
    if stream.config.duplicate_window > 0:
        stream.dedup.expire(now_ns=time_ns, window_ns=stream.config.duplicate_window)
    if _needs_no_checks(stream, block):
        first = stream.store.append_block(block, time_ns=time_ns)
        stream.last_msg_id = b""
        enforce_limits(stream, block.subject_summary())
        return first, block.rows, []
    first = stream.store.last_seq + 1
    exceptions: Exceptions = []
    for row in range(block.rows):
        headers = block.headers(row)
        named = _named(headers) if b"\nNats-" in headers else {}
        message = _Message(block.subject(row), headers, block.data(row), time_ns, named)
        refused = _publish(stream, message)
        if refused is not None:
            exceptions.append((row, refused))
    return first, block.rows - len(exceptions), exceptions


def _needs_no_checks(stream: Stream, block: Block) -> bool:
    """No row of the block can be refused, skipped or mean more than to be stored."""
    config, store = stream.config, stream.store
    if config.sealed or (config.retention is Retention.INTEREST and not stream.wants_all):
        return False
    if block.headers_len and (block.headers_len > HEADER_BYTES_MAX or block.any_nats_header()):
        return False
    if config.max_msg_size >= 0 and block.max_row_size > config.max_msg_size:
        return False
    if block.nbytes > RECORD_BYTES_MAX:
        return False
    if config.discard is Discard.NEW:
        if config.discard_new_per_subject:
            return False
        if 0 < config.max_msgs < store.messages + block.rows:
            return False
        if 0 < config.max_bytes < store.bytes + store.sizing.of_block(block):
            return False
    return True


def _publish(stream: Stream, message: _Message) -> JetStreamError | Duplicate | None:
    """Store one message, or say why not. None: it took the next sequence."""
    refused = _refused(stream, message)
    if refused is not None:
        return refused
    store, subject = stream.store, message.subject
    if not stream.wants(subject):
        store.skip_to(store.last_seq + 2)  # acked with a sequence that nobody will ever read
        _remember_id(stream, message)
        return None
    ttl: int | None = None
    if b"Nats-TTL" in message.named:
        ttl = parse_ttl(message.named[b"Nats-TTL"])
        if ttl is None:
            return JetStreamError(ErrCode.MESSAGE_TTL_INVALID)
    full = _full(stream, message)
    if full:
        return JetStreamError.of(ErrCode.STREAM_STORE_FAILED, err=full)
    seq = store.append(subject, message.headers, message.data, time_ns=message.time_ns)
    if ttl is not None:
        store.deadlines.set(seq, due_at(message.time_ns, ttl))
    _remember_id(stream, message)
    rollup = message.named.get(b"Nats-Rollup")
    if rollup is not None:
        store.purge(None if rollup.lower() == b"all" else subject, keep=1)
    enforce_limits(stream, (subject,))
    return None


def _refused(stream: Stream, message: _Message) -> JetStreamError | Duplicate | None:
    """Checks 1 to 14, in the order of a single server."""
    config = stream.config
    size = len(message.headers) + len(message.data)
    if config.storage is Storage.FILE and size > RECORD_BYTES_MAX:
        return JetStreamError.of(ErrCode.STREAM_STORE_FAILED, err="message too large")
    if config.sealed:
        return JetStreamError(ErrCode.STREAM_SEALED)
    if message.named:
        refused = _refused_by_headers(stream, message)
        if refused is not None:
            return refused
    if 0 <= config.max_msg_size < size:
        return JetStreamError(ErrCode.STREAM_MESSAGE_EXCEEDS_MAXIMUM)
    if len(message.headers) > HEADER_BYTES_MAX:
        return JetStreamError(ErrCode.STREAM_HEADER_EXCEEDS_MAXIMUM)
    return None


def _refused_by_headers(stream: Stream, message: _Message) -> JetStreamError | Duplicate | None:
    named, config = message.named, stream.config
    if b"Nats-Batch-Id" in named:
        return JetStreamError(ErrCode.ATOMIC_PUBLISH_DISABLED)
    if b"Nats-Incr" in named:
        return JetStreamError(ErrCode.MESSAGE_INCR_DISABLED)
    if named.get(b"Nats-Expected-Stream", b"") not in (b"", config.name.encode()):
        return JetStreamError(ErrCode.STREAM_NOT_MATCH)
    if b"Nats-TTL" in named and not config.allow_msg_ttl:
        return JetStreamError(ErrCode.MESSAGE_TTL_DISABLED)
    refused = _wrong_subject_sequence(stream, message) or _wrong_sequence(stream, message)
    if refused is not None:
        return refused
    if b"Nats-Schedule" in named:
        return JetStreamError(ErrCode.MESSAGE_SCHEDULES_DISABLED)
    if b"Nats-Stream-Source" in named:
        return JetStreamError(ErrCode.MESSAGE_SOURCE_HDR_NOT_ALLOWED)
    return _wrong_id(stream, message) or _wrong_rollup(stream, message)


def _wrong_id(stream: Stream, message: _Message) -> JetStreamError | Duplicate | None:
    if message.msg_id and stream.config.duplicate_window > 0:
        original = stream.dedup.find(message.msg_id)
        if original:
            return Duplicate(original)
    expected = message.named.get(b"Nats-Expected-Last-Msg-Id", b"")
    if expected and expected != stream.last_msg_id:
        actual = stream.last_msg_id.decode(errors="replace")
        return JetStreamError.of(ErrCode.STREAM_WRONG_LAST_MSG_ID, id=actual)
    return None


def _wrong_subject_sequence(stream: Stream, message: _Message) -> JetStreamError | None:
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
    return _compare(expected, actual)


def _wrong_sequence(stream: Stream, message: _Message) -> JetStreamError | None:
    expected = message.named.get(b"Nats-Expected-Last-Sequence")
    return None if expected is None else _compare(expected, stream.store.last_seq)


def _compare(expected: bytes, actual: int) -> JetStreamError | None:
    number = int(expected) if expected.isdigit() and len(expected) <= 20 else _NOT_A_NUMBER
    if number == actual:
        return None
    return JetStreamError.of(ErrCode.STREAM_WRONG_LAST_SEQUENCE, seq=actual)


def _wrong_rollup(stream: Stream, message: _Message) -> JetStreamError | None:
    value = message.named.get(b"Nats-Rollup")
    if value is None:
        return None
    if not stream.config.allow_rollup_hdrs or stream.config.deny_purge:
        return JetStreamError.of(ErrCode.STREAM_ROLLUP_FAILED, err="rollup not permitted")
    if value.lower() not in (b"sub", b"all"):
        text = value.lower().decode(errors="replace")
        reason = f'rollup value invalid: "{text}"'
        return JetStreamError.of(ErrCode.STREAM_ROLLUP_FAILED, err=reason)
    return None


def _full(stream: Stream, message: _Message) -> str:
    """Why a stream that discards new messages does not take this one; empty if it does.

    A message that replaces the oldest of its subject needs no room of its own."""
    config, store = stream.config, stream.store
    if config.discard is not Discard.NEW:
        return ""
    per_subject = config.max_msgs_per_subject
    entry = store.index.get(message.subject) if per_subject > 0 else None
    replaces = entry is not None and entry.count >= per_subject
    if replaces and config.discard_new_per_subject and b"Nats-Rollup" not in message.named:
        return "maximum messages per subject exceeded"
    if 0 < config.max_msgs <= store.messages and not replaces:
        return "maximum messages exceeded"
    size = store.sizing.of(message.subject, message.headers, message.data)
    if 0 < config.max_bytes < store.bytes + size:
        oldest = store.subject_state(message.subject) if replaces else None
        found = store.rows(oldest[1]) if oldest is not None else None
        if found is None or store.sizing.of_row(*found) < size:
            return "maximum bytes exceeded"
    return ""


def _remember_id(stream: Stream, message: _Message) -> None:
    stream.last_msg_id = message.msg_id
    if message.msg_id and stream.config.duplicate_window > 0:
        stream.dedup.add(message.msg_id, seq=stream.store.last_seq, time_ns=message.time_ns)


def _named(raw: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for name, value in wire_headers.parse(raw):
        if name.startswith(b"Nats-"):
            found.setdefault(name, value)
    return found
