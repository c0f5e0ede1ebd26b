"""Finding the messages of MSG.GET and DIRECT.GET requests, and encoding direct answers.

Owns: how a request selects its messages, and the headers of a direct answer.
May not touch: anything but a store; these are pure functions.
Spec: NATS JetStream API, STREAM.MSG.GET and DIRECT.GET (ADR-31)."""

from __future__ import annotations

from functools import lru_cache
from itertools import islice
from typing import Protocol

from broker.jetstream.api.info import StoredMessageInfo
from broker.jetstream.api.requests import (
    MESSAGE_NOT_FOUND,
    NO_RESULTS,
    TOO_MANY_RESULTS,
    MsgGetRequest,
    StatusAnswer,
    parse_direct_get,
)
from broker.jetstream.config import StreamConfig
from broker.jetstream.config.api_levels import REQUIRED_LEVEL_HEADER
from broker.jetstream.times import rfc3339
from broker.store.messages import MessageStore, StoredMessage
from broker.subjects import has_wildcard
from broker.wire import headers as wire_headers

Answer = tuple[bytes, bytes]  # headers, payload
MULTI_LAST_MAX = 1024
# An answer is built in one turn of the loop: a longer batch ends early. Its last message says how
# many messages are left, so a client that wants more asks again.
BATCH_ROWS_MAX = 2048
BATCH_BYTES_MAX = 8 << 20
_LINES = b"Nats-Stream: %b\r\nNats-Subject: %b\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %b\r\n"


class ReadableStream(Protocol):
    @property
    def config(self) -> StreamConfig: ...
    @property
    def store(self) -> MessageStore: ...


@lru_cache(maxsize=4096)  # messages stored together share their time
def time_text(ns: int) -> bytes:
    return rfc3339(ns).encode()


def find_message(store: MessageStore, request: MsgGetRequest) -> StoredMessage | None:
    """The one message a request selects."""
    if request.last_by_subj:
        return _get(store, store.last_matching((request.last_by_subj.encode(),)))
    start = request.seq
    if request.start_time is not None:
        start = store.first_at_time(request.start_time)
        if not start:
            return None
    if request.next_by_subj:
        filters = (request.next_by_subj.encode(),)
        return _get(store, store.next_matching(filters, max(start, 1)))
    if request.start_time is not None:
        return _get(store, store.next_matching((), start))
    return _get(store, request.seq)


def shown(message: StoredMessage, *, no_hdr: bool) -> StoredMessageInfo:
    return StoredMessageInfo(
        subject=message.subject.decode(errors="replace"),
        seq=message.seq,
        hdrs=b"" if no_hdr else message.headers,
        data=message.data,
        time=message.time_ns,
    )


def last_of_subject(stream: ReadableStream, subject: bytes) -> Answer:
    """The answer to a request for the last message of one subject, without other conditions: most
    gets of a key-value bucket. The subject has no wildcard."""
    found = stream.store.last_row(subject)
    if found is None:
        return MESSAGE_NOT_FOUND.header, b""
    rows, i = found
    lines = _LINES % (stream.config.name.encode(), subject, rows.seq(i), time_text(rows.time(i)))
    return wire_headers.add_lines(rows.headers(i), lines), rows.data(i)


def direct_get(
    stream: ReadableStream, subject: str, headers: bytes, payload: bytes
) -> list[Answer]:
    """Everything to send to the requester, in order."""
    if subject and not headers and not payload and not has_wildcard(subject.encode()):
        return [last_of_subject(stream, subject.encode())]
    level = wire_headers.get(headers, REQUIRED_LEVEL_HEADER) if headers else None
    request = parse_direct_get(subject, payload, required_level=level)
    if isinstance(request, StatusAnswer):
        return [(request.header, b"")]
    name = stream.config.name
    if request.multi_last:
        return _multi_last(stream.store, name, request)
    if request.batch > 0:
        return _batch(stream.store, name, request)
    message = find_message(stream.store, request)
    if message is None:
        return [(MESSAGE_NOT_FOUND.header, b"")]
    return [(b"" if request.no_hdr else _headers(name, message), message.data)]


def _batch(store: MessageStore, name: str, request: MsgGetRequest) -> list[Answer]:
    filters = (request.next_by_subj.encode(),) if request.next_by_subj else ()
    start = max(request.seq, 1)
    if request.start_time is not None:
        start = store.first_at_time(request.start_time)
    budget = min(request.max_bytes or BATCH_BYTES_MAX, BATCH_BYTES_MAX)
    rows_max = min(request.batch, BATCH_ROWS_MAX)
    answers: list[Answer] = []
    previous = 0
    seq = store.next_matching(filters, start) if start else 0
    pending = store.count_matching(filters, seq) if seq else 0
    while seq and len(answers) < rows_max and budget > 0:
        message = store.get(seq)
        assert message is not None, "a matching sequence is stored"
        pending -= 1
        extra = [(b"Nats-Num-Pending", b"%d" % pending), (b"Nats-Last-Sequence", b"%d" % previous)]
        answers.append((_headers(name, message, extra), message.data))
        budget -= len(message.subject) + len(message.headers) + len(message.data)
        previous = seq
        seq = store.next_matching(filters, seq + 1)
    if not answers:
        return [(MESSAGE_NOT_FOUND.header, b"")]
    return [*answers, (_end_of_batch(pending, previous), b"")]


def _multi_last(store: MessageStore, name: str, request: MsgGetRequest) -> list[Answer]:
    up_to = request.up_to_seq or store.last_seq
    if request.up_to_time is not None:
        first_after = store.first_at_time(request.up_to_time)
        up_to = first_after - 1 if first_after else store.last_seq
    found = store.subjects_matching(*(pattern.encode() for pattern in request.multi_last))
    subjects = list(islice(found, MULTI_LAST_MAX + 1))
    if len(subjects) > MULTI_LAST_MAX:
        return [(TOO_MANY_RESULTS.header, b"")]
    last = sorted(store.last_matching((subject,), up_to) for subject in subjects)
    wanted = [seq for seq in last if seq and seq >= request.seq]
    if not wanted:
        return [(NO_RESULTS.header, b"")]
    budget = min(request.max_bytes or BATCH_BYTES_MAX, BATCH_BYTES_MAX)
    answers: list[Answer] = []
    previous = 0
    for position, seq in enumerate(wanted[: request.batch or None]):
        if budget <= 0:
            break
        message = store.get(seq)
        assert message is not None, "the last message of a subject is stored"
        left = len(wanted) - position - 1
        extra = [(b"Nats-Num-Pending", b"%d" % left), (b"Nats-Last-Sequence", b"%d" % previous)]
        answers.append((_headers(name, message, extra), message.data))
        budget -= len(message.subject) + len(message.headers) + len(message.data)
        previous = seq
    end = _end_of_batch(len(wanted) - len(answers), previous, up_to=up_to)
    return [*answers, (end, b"")]


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
