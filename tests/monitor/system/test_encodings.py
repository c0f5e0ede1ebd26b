"""Answers of the system account, encoded as the request accepts."""

from __future__ import annotations

import gzip
import json

import pytest

from broker.compression.s2_stream import S2Reader
from broker.monitor.system.encodings import accepted, encode
from broker.subjects import finish

BODY = json.dumps({"data": list(range(60_000))}).encode()


def unpacked(data: bytes) -> bytes:
    reader, found = S2Reader(), []
    reader.feed(data)
    while reader.more:
        found.append(reader.read())
    return b"".join(found)


@pytest.mark.parametrize(
    ("named", "encoding"),
    [
        (b"snappy", b"snappy"),
        (b"gzip, S2", b"snappy"),
        (b"deflate, GZIP", b"gzip"),
        (b"br", b"identity"),
    ],
)
def test_the_choice(named: bytes, encoding: bytes) -> None:
    assert accepted(b"NATS/1.0\r\nAccept-Encoding: %b\r\n\r\n" % named) == encoding
    assert accepted(b"") == accepted(b"NATS/1.0\r\nOther: gzip\r\n\r\n") == b""


def test_what_is_encoded_can_be_read() -> None:
    assert unpacked(finish(encode(BODY, b"snappy"))) == BODY
    assert gzip.decompress(finish(encode(BODY, b"gzip"))) == BODY
    assert finish(encode(BODY, b"identity")) == BODY
    assert len(finish(encode(BODY, b"snappy"))) < len(BODY)
