"""Gets of the last message of a subject: the short way and the general one answer alike."""

from __future__ import annotations

import pytest

from broker.cluster.direct import direct_get, last_of_subject
from broker.jetstream.config import StreamConfig
from broker.jetstream.stream import Stream
from broker.store.messages import MessageStore

HEADERS = b"NATS/1.0\r\nA: b\r\n\r\n"


@pytest.fixture
def stream() -> Stream:
    config = StreamConfig(name="S", subjects=["k.>"])
    found = Stream(config, created_ns=1, store=MessageStore())
    store = found.store
    store.append(b"k.a", b"", b"old", time_ns=1_000_000_000)
    store.append(b"k.b", HEADERS, b"b", time_ns=1_500_000_000)
    store.append(b"k.a", b"", b"new", time_ns=2_000_000_000)
    store.append(b"k.gone", b"", b"x", time_ns=2_000_000_000)
    store.append(b"k.c", b"", b"", time_ns=2_000_000_000)
    store.append(b"k.c", b"", b"deleted", time_ns=2_000_000_000)
    store.remove(4)
    store.remove(6)
    return found


@pytest.mark.parametrize("subject", ["k.a", "k.b", "k.c", "k.gone", "k.never"])
def test_the_short_way_answers_as_the_general_one(stream: Stream, subject: str) -> None:
    body = b'{"last_by_subj":"%b"}' % subject.encode()
    assert [last_of_subject(stream, subject.encode())] == direct_get(stream, "", b"", body)
    assert direct_get(stream, subject, b"", b"") == direct_get(stream, "", b"", body)


def test_the_headers_of_a_message_are_kept_and_followed_by_ours(stream: Stream) -> None:
    assert last_of_subject(stream, b"k.b") == (
        b"NATS/1.0\r\nA: b\r\nNats-Stream: S\r\nNats-Subject: k.b\r\nNats-Sequence: 2\r\n"
        b"Nats-Time-Stamp: 1970-01-01T00:00:01.5Z\r\n\r\n",
        b"b",
    )


def test_a_wildcard_finds_the_last_of_all(stream: Stream) -> None:
    (answer,) = direct_get(stream, "k.*", b"", b"")
    assert b"Nats-Sequence: 5\r\n" in answer[0]
