"""How an answer of the system account is encoded, if the request accepts that.

Owns: the choice by the header `Accept-Encoding`, and the encodings.
May not touch: what is answered. Long answers are encoded in steps.
Spec: nats-server: snappy (a framed stream, also for "s2") before gzip; anything else is answered as
it is, with `Content-Encoding: identity`."""

from __future__ import annotations

import zlib

from broker.compression.s2_stream import SNAPPY_BYTES_MAX, SNAPPY_IDENTIFIER, data_chunk
from broker.subjects import Steps
from broker.wire import headers

ACCEPT, CONTENT = b"Accept-Encoding", b"Content-Encoding"
_GZIP_WINDOW = 16 + zlib.MAX_WBITS


def accepted(request: bytes) -> bytes:
    """The encoding that a request with these headers gets; b"": it has named none."""
    named = (headers.get(request, ACCEPT) or b"").lower() if request else b""
    if not named:
        return b""
    if b"snappy" in named or b"s2" in named:
        return b"snappy"
    return b"gzip" if b"gzip" in named else b"identity"


def encode(body: bytes, encoding: bytes) -> Steps[bytes]:
    pieces = (body[at : at + SNAPPY_BYTES_MAX] for at in range(0, len(body), SNAPPY_BYTES_MAX))
    if encoding == b"snappy":
        found = [SNAPPY_IDENTIFIER]
        for piece in pieces:
            found.append(data_chunk(piece))
            yield
        return b"".join(found)
    if encoding == b"gzip":
        stream = zlib.compressobj(zlib.Z_BEST_SPEED, zlib.DEFLATED, _GZIP_WINDOW)
        found = []
        for piece in pieces:
            found.append(stream.compress(piece))
            yield
        return b"".join([*found, stream.flush()])
    return body


def described(encoding: bytes) -> bytes:
    """The headers of the answer."""
    return headers.build(b"", [(CONTENT, encoding)]) if encoding else b""
