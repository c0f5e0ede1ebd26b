"""The text of one message as a client receives it.

Owns: MSG and HMSG.
May not touch: routing, sockets.
Spec: NATS client protocol, MSG and HMSG. Compiled twins: _text.pxd and _encode.pyx."""

from __future__ import annotations


def encode_msg(subject: bytes, sid: bytes, reply: bytes, headers: bytes, payload: bytes) -> bytes:
    """One MSG, or HMSG when there are headers. Fields are separated by a single space because
    some clients split on it."""
    reply_part = b" " + reply if reply else b""
    if headers:
        total = len(headers) + len(payload)
        sizes = b"%d %d" % (len(headers), total)
        return b"HMSG %b %b%b %b\r\n%b%b\r\n" % (subject, sid, reply_part, sizes, headers, payload)
    return b"MSG %b %b%b %d\r\n%b\r\n" % (subject, sid, reply_part, len(payload), payload)
