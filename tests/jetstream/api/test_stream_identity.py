"""A stream's identity: who must name it, and which answers carry it."""

from __future__ import annotations

import pytest

from broker.jetstream.api.stream_identity import checked_identity
from broker.jetstream.api.subjects import ApiKind
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.times import parse_rfc3339

# As answered by nats-server 2.15.1 for a stream that was created at this time.
CREATED = parse_rfc3339("2026-11-17T06:48:48.195212877Z")
IDENTITY = b"N7G5Tth5"
SOURCING = b'{"stream_name":"S","config":{"name":"C","sourcing":true}}'
DIRECT = b'{"stream_name":"S","config":{"name":"C","direct":true}}'
PLAIN = b'{"stream_name":"S","config":{"name":"C","description":"\\"direct\\""}}'
ANSWERED = b"NATS/1.0\r\nNats-Stream-Identity: " + IDENTITY + b"\r\n\r\n"


def named(identity: bytes) -> bytes:
    return b"NATS/1.0\r\nNats-Stream-Identity: " + identity + b"\r\n\r\n"


@pytest.mark.parametrize("body", [SOURCING, DIRECT])
@pytest.mark.parametrize("headers", [b"", named(IDENTITY), named(b"")])
def test_a_consumer_of_another_stream_is_told_the_identity(body: bytes, headers: bytes) -> None:
    assert checked_identity(ApiKind.CONSUMER_CREATE, headers, body, CREATED) == ANSWERED


def test_another_identity_is_refused() -> None:
    with pytest.raises(JetStreamError) as refused:
        checked_identity(ApiKind.CONSUMER_CREATE, named(b"another"), SOURCING, CREATED)
    assert refused.value.err_code is ErrCode.CONSUMER_STREAM_IDENTITY_MISMATCH
    assert refused.value.description.endswith(IDENTITY.decode())


@pytest.mark.parametrize(
    ("kind", "headers", "body", "answered"),
    [
        (ApiKind.CONSUMER_CREATE, named(b"another"), PLAIN, b""),
        (ApiKind.CONSUMER_CREATE, b"", b'{"direct"', b""),
        (ApiKind.CONSUMER_RESET, b"", b"", b""),
        (ApiKind.CONSUMER_RESET, named(b"another"), b"", ANSWERED),
        (ApiKind.CONSUMER_RESET, named(b""), b"", ANSWERED),
        (ApiKind.CONSUMER_INFO, named(b"another"), b"", b""),
    ],
)
def test_other_requests(kind: ApiKind, headers: bytes, body: bytes, answered: bytes) -> None:
    assert checked_identity(kind, headers, body, CREATED) == answered
