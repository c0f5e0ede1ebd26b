"""Finding the messages of MSG.GET and DIRECT.GET requests, and encoding direct answers.

Owns: how a request selects its messages, and the headers of a direct answer.
May not touch: anything but a store; these are pure functions.
Spec: NATS JetStream API, STREAM.MSG.GET and DIRECT.GET (ADR-31)."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

from broker.cluster.peers.rpc import CallFailed
from broker.jetstream.api.info import StoredMessageInfo
from broker.jetstream.api.requests import (
    MESSAGE_NOT_FOUND,
    NO_RESULTS,
    TOO_MANY_RESULTS,
    MsgGetRequest,
    StatusAnswer,
    parse_direct_get,
)
from broker.jetstream.api.responses import GotMessage, encode_response
from broker.jetstream.api.subjects import ApiKind
from broker.jetstream.config import StreamConfig
from broker.jetstream.config.api_levels import REQUIRED_LEVEL_HEADER
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.times import rfc3339
from broker.store.block.codec import BlockDamaged, Rows
from broker.store.messages import MessageStore, StoredMessage
from broker.subjects import Steps, has_wildcard
from broker.wire import headers as wire_headers

Answer = tuple[bytes, bytes]  # headers, payload
MULTI_LAST_MAX = 1024
# An answer is built in memory, so a longer batch ends early. Its last message says how many
# messages are left, so that the client can ask again.
BATCH_ROWS_MAX = 2048
BATCH_BYTES_MAX = 8 << 20
_DIGITS_MAX = 19  # a number with fewer digits is a valid sequence
_ZERO = ord("0")
_LINES = b"Nats-Stream: %b\r\nNats-Subject: %b\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %b\r\n"


class HeldStream(Protocol):
    @property
    def holders(self) -> set[int]: ...


class ReadableStream(Protocol):
    @property
    def config(self) -> StreamConfig: ...
    @property
    def store(self) -> MessageStore: ...


@lru_cache(maxsize=4096)  # messages stored together share their time
def time_text(ns: int) -> bytes:
    return rfc3339(ns).encode()


def refusal(damage: BlockDamaged, held: HeldStream) -> JetStreamError:
    """The error to answer with if this is the only replica, which cannot be repaired. Raises
    CallFailed if there are others: then this replica is rebuilt, another one leads, and the caller
    asks again."""
    if len(held.holders) > 1:
        raise CallFailed(str(damage)) from damage
    return JetStreamError.of(ErrCode.STREAM_STORE_FAILED, err=str(damage))


def find_message(store: MessageStore, request: MsgGetRequest) -> Steps[StoredMessage | None]:
    """The one message a request selects."""
    if request.last_by_subj:
        found = yield from store.last_matching_steps((request.last_by_subj.encode(),))
        return _get(store, found)
    start = request.seq
    if request.start_time is not None:
        start = store.first_at_time(request.start_time)
        if not start:
            return None
    if request.next_by_subj or request.start_time is not None:
        filters = (request.next_by_subj.encode(),) if request.next_by_subj else ()
        return _get(store, (yield from store.next_matching_steps(filters, max(start, 1))))
    return _get(store, request.seq)


def shown(message: StoredMessage | None, request: MsgGetRequest) -> bytes:
    """The answer to MSG.GET. Raises JetStreamError when there is no such message."""
    if message is None:
        raise JetStreamError(ErrCode.NO_MESSAGE_FOUND)
    info = StoredMessageInfo(
        subject=message.subject.decode(errors="replace"),
        seq=message.seq,
        hdrs=b"" if request.no_hdr else message.headers,
        data=message.data,
        time=message.time_ns,
    )
    return encode_response(ApiKind.STREAM_MSG_GET, GotMessage(info))


def last_of_subject(stream: ReadableStream, subject: bytes) -> Answer:
    """The answer to a request for the last message of one subject, without other conditions, as
    most gets of a key-value bucket are. The subject has no wildcard."""
    return _row_answer(stream, stream.store.last_row(subject))


def sequence_asked(payload: bytes) -> int:
    """The sequence, if the request is exactly {"seq":N}, as client libraries write a get by
    sequence. Otherwise 0, and the request has to be parsed."""
    if payload[:7] == b'{"seq":' and payload[-1:] == b"}":
        digits = payload[7:-1]
        if digits.isdigit() and len(digits) < _DIGITS_MAX and digits[0] != _ZERO:
            return int(digits)
    return 0


def message_at(stream: ReadableStream, seq: int) -> Answer:
    """The answer to a request for the message of this sequence, without other conditions."""
    return _row_answer(stream, stream.store.rows(seq))


def _row_answer(stream: ReadableStream, found: tuple[Rows, int] | None) -> Answer:
    if found is None:
        return MESSAGE_NOT_FOUND.header, b""
    rows, i = found
    time = time_text(rows.time(i))
    lines = _LINES % (stream.config.name.encode(), rows.subject(i), rows.seq(i), time)
    return wire_headers.add_lines(rows.headers(i), lines), rows.data(i)


def direct_get(
    stream: ReadableStream, subject: str, headers: bytes, payload: bytes
) -> Steps[list[Answer]]:
    """The answers to send to the requester, in order."""
    if subject and not headers and not payload and not has_wildcard(subject.encode()):
        return [last_of_subject(stream, subject.encode())]
    seq = 0 if subject or headers else sequence_asked(payload)
    if seq:
        return [message_at(stream, seq)]
    level = wire_headers.get(headers, REQUIRED_LEVEL_HEADER) if headers else None
    request = parse_direct_get(subject, payload, required_level=level)
    if isinstance(request, StatusAnswer):
        return [(request.header, b"")]
    name = stream.config.name
    if request.multi_last:
        return (yield from _multi_last(stream.store, name, request))
    if request.batch > 0:
        return (yield from _batch(stream.store, name, request))
    message = yield from find_message(stream.store, request)
    if message is None:
        return [(MESSAGE_NOT_FOUND.header, b"")]
    return [(b"" if request.no_hdr else _headers(name, message), message.data)]


class _Batch:
    """The answers of a batch, each with the number of messages that are left."""

    def __init__(self, name: str, request: MsgGetRequest) -> None:
        self.answers: list[Answer] = []
        self.previous = 0
        self._name = name
        self._budget = min(request.max_bytes or BATCH_BYTES_MAX, BATCH_BYTES_MAX)

    @property
    def full(self) -> bool:
        return self._budget <= 0

    def add(self, message: StoredMessage, left: int) -> None:
        pairs = [
            (b"Nats-Num-Pending", b"%d" % left),
            (b"Nats-Last-Sequence", b"%d" % self.previous),
        ]
        self.answers.append((_headers(self._name, message, pairs), message.data))
        self._budget -= len(message.subject) + len(message.headers) + len(message.data)
        self.previous = message.seq


def _batch(store: MessageStore, name: str, request: MsgGetRequest) -> Steps[list[Answer]]:
    filters = (request.next_by_subj.encode(),) if request.next_by_subj else ()
    start = max(request.seq, 1)
    if request.start_time is not None:
        start = store.first_at_time(request.start_time)
    rows_max = min(request.batch, BATCH_ROWS_MAX)
    batch = _Batch(name, request)
    seq = (yield from store.next_matching_steps(filters, start)) if start else 0
    pending = (yield from store.count_matching_steps(filters, seq, store.last_seq)) if seq else 0
    while seq and len(batch.answers) < rows_max and not batch.full:
        message = store.get(seq)
        if message is not None:  # it was not removed since
            pending = max(pending - 1, 0)
            batch.add(message, pending)
            yield
        seq = yield from store.next_matching_steps(filters, seq + 1)
    if not batch.answers:
        return [(MESSAGE_NOT_FOUND.header, b"")]
    return [*batch.answers, (_end_of_batch(pending, batch.previous), b"")]


def _multi_last(store: MessageStore, name: str, request: MsgGetRequest) -> Steps[list[Answer]]:
    up_to = request.up_to_seq or store.last_seq
    if request.up_to_time is not None:
        first_after = store.first_at_time(request.up_to_time)
        up_to = first_after - 1 if first_after else store.last_seq
    subjects: list[bytes] = []
    for part in store.subject_parts(*(pattern.encode() for pattern in request.multi_last)):
        subjects += part
        if len(subjects) > MULTI_LAST_MAX:
            return [(TOO_MANY_RESULTS.header, b"")]
        yield
    found: list[int] = []
    for subject in subjects:
        found.append((yield from store.last_matching_steps((subject,), up_to)))
        yield
    wanted = sorted(seq for seq in found if seq and seq >= request.seq)
    if not wanted:
        return [(NO_RESULTS.header, b"")]
    batch = _Batch(name, request)
    left = len(wanted)
    for seq in wanted[: request.batch or None]:
        if batch.full:
            break
        left -= 1
        message = store.get(seq)
        if message is not None:  # it was not removed since
            batch.add(message, left)
            yield
    return [*batch.answers, (_end_of_batch(left, batch.previous, up_to=up_to), b"")]


def _get(store: MessageStore, seq: int) -> StoredMessage | None:
    return store.get(seq) if seq else None


def _headers(
    stream: str, message: StoredMessage, extra: list[tuple[bytes, bytes]] | None = None
) -> bytes:
    time = time_text(message.time_ns)
    lines = _LINES % (stream.encode(), message.subject, message.seq, time)
    return wire_headers.add(wire_headers.add_lines(message.headers, lines), extra or ())


def _end_of_batch(left: int, last: int, *, up_to: int = 0) -> bytes:
    pairs = [(b"Nats-Num-Pending", b"%d" % left), (b"Nats-Last-Sequence", b"%d" % last)]
    if up_to:
        pairs.append((b"Nats-UpTo-Sequence", b"%d" % up_to))
    return wire_headers.build(b"NATS/1.0 204 EOB", pairs)
