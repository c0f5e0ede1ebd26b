"""The identity of a stream, by which a source detects that its origin was deleted and recreated.

Owns: the identity, which requests check it, and which answers carry it.
May not touch: consumers, sending.
Spec: NATS 2.15, header Nats-Stream-Identity; it is the hash of the time of creation."""

from __future__ import annotations

from typing import Final

import msgspec

from broker.jetstream.api.subjects import ApiKind
from broker.jetstream.config.names import get_hash
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.times import rfc3339
from broker.wire import headers as wire_headers

IDENTITY_HEADER: Final = b"Nats-Stream-Identity"


class _Origin(msgspec.Struct):
    direct: bool = False
    sourcing: bool = False


class _Create(msgspec.Struct):
    config: _Origin = msgspec.field(default_factory=_Origin)


_decoder = msgspec.json.Decoder(_Create)


def checked_identity(kind: ApiKind, headers: bytes, body: bytes, created_ns: int) -> bytes:
    """The headers of the answer. Raises JetStreamError if the consumer of a mirror or source names
    another identity than that of the stream."""
    asked = wire_headers.get(headers, IDENTITY_HEADER) if headers else None
    if kind is ApiKind.CONSUMER_RESET:
        wanted = asked is not None
    else:
        wanted = kind is ApiKind.CONSUMER_CREATE and _reads_for_a_stream(body)
    if not wanted:
        return b""
    identity = get_hash(rfc3339(created_ns))
    if kind is ApiKind.CONSUMER_CREATE and asked and asked != identity.encode():
        raise JetStreamError.of(ErrCode.CONSUMER_STREAM_IDENTITY_MISMATCH, msg=identity)
    return wire_headers.build(b"", [(IDENTITY_HEADER, identity.encode())])


def _reads_for_a_stream(body: bytes) -> bool:
    if b'"direct"' not in body and b'"sourcing"' not in body:
        return False
    try:
        config = _decoder.decode(body).config
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False  # the leader will report what is wrong
    return config.direct or config.sourcing
