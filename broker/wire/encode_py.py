"""What the server writes in bulk: forwarded publishes and publish acknowledgements.

Owns: the text of PUB and HPUB between nodes, of LMSG and HMSG, and of a pub ack; the reply subjects
of a batch.
May not touch: routing, sequence assignment, sockets.
Spec: NATS client protocol, PUB and HPUB; JetStream PubAck. Compiled twin: _encode.pyx."""

from __future__ import annotations

from typing import final

from broker.wire.run_py import PubRun
from broker.wire.text_py import encode_msg


def encode_pub(run: PubRun, start: int, stop: int) -> bytes:
    """The range encoded as PUB and HPUB, for the parser of another node."""
    run._check(start, stop)  # noqa: SLF001
    parts = []
    for subject, reply, headers, payload in run._messages[start:stop]:  # noqa: SLF001
        target = subject + b" " + reply if reply else subject
        total = len(headers) + len(payload)
        if headers:
            line = b"HPUB %b %d %d\r\n" % (target, len(headers), total)
        else:
            line = b"PUB %b %d\r\n" % (target, total)
        parts.append(line + headers + payload + b"\r\n")
    return b"".join(parts)


def encode_leaf(run: PubRun, start: int, stop: int, queues: bytes) -> bytes:
    """The range encoded as LMSG and HMSG, for the server at the other end of a leaf node
    connection; `queues`: the queue groups that get it too, with a blank between two."""
    run._check(start, stop)  # noqa: SLF001
    parts = []
    for subject, reply, headers, payload in run._messages[start:stop]:  # noqa: SLF001
        target = subject + b" " + reply if reply else subject
        if queues:
            target = subject + (b" + " + reply + b" " if reply else b" | ") + queues
        total = len(headers) + len(payload)
        if headers:
            line = b"HMSG %b %d %d\r\n" % (target, len(headers), total)
        else:
            line = b"LMSG %b %d\r\n" % (target, total)
        parts.append(line + headers + payload + b"\r\n")
    return b"".join(parts)


@final
class ReplyColumn:
    """Reply subjects of a batch in publish order; b"" where the publisher expects no reply."""

    __slots__ = ("_replies",)

    def __init__(self) -> None:
        self._replies: list[bytes] = []

    def append_run(self, run: PubRun, start: int, stop: int) -> None:
        run._check(start, stop)  # noqa: SLF001
        self._replies.extend(reply for _, reply, _, _ in run._messages[start:stop])  # noqa: SLF001

    def append(self, reply: bytes) -> None:
        self._replies.append(reply)

    def __len__(self) -> int:
        return len(self._replies)

    def get(self, i: int) -> bytes:
        self._check(i, i + 1)
        return self._replies[i]

    def ending(self, suffix: bytes) -> list[int]:
        """The rows, ascending, whose reply is longer than `suffix` and ends with it."""
        return [
            row
            for row, reply in enumerate(self._replies)
            if len(reply) > len(suffix) and reply.endswith(suffix)
        ]

    def prefix(self, start: int, stop: int) -> bytes | None:
        """The text up to and including the last '.', if all replies of the range share it.

        None when they differ, when one is empty, has no '.' or nothing after it: a subscription
        lookup by prefix cannot answer for every reply then."""
        self._check(start, stop)
        if start == stop:
            return None
        first = self._replies[start]
        shared = first[: first.rfind(b".") + 1]
        if not shared:
            return None
        for reply in self._replies[start:stop]:
            token = reply[len(shared) :]
            if not reply.startswith(shared) or not token or b"." in token:
                return None
        return shared

    def _check(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= len(self._replies):
            raise IndexError(f"rows {start}:{stop} of {len(self._replies)} replies")


def encode_pub_acks(  # noqa: PLR0917
    replies: ReplyColumn,
    start: int,
    stop: int,
    sid: bytes,
    stream: bytes,
    first_seq: int,
    extra: bytes,
) -> bytes:
    """Acks for consecutive sequences: row start + k was stored at first_seq + k.

    A row without a reply consumes its sequence but gets no ack. `stream` is the name, escaped
    for a JSON string; `extra` is JSON text that continues the object (b',"domain":"hub"')."""
    parts = []
    replies._check(start, stop)  # noqa: SLF001
    for k in range(stop - start):
        reply = replies.get(start + k)
        if reply:
            body = b'{"stream":"%b","seq":%d%b}' % (stream, first_seq + k, extra)
            parts.append(encode_msg(reply, sid, b"", b"", body))
    return b"".join(parts)


def unmask(data: bytes, key: bytes) -> bytes:
    """The payload of a WebSocket frame without its mask; key[0] masks the first byte."""
    size = len(data)
    if len(key) != 4:
        raise ValueError("a mask has 4 bytes")
    pad = (key * (size // 4 + 1))[:size]
    mixed = int.from_bytes(data, "little") ^ int.from_bytes(pad, "little")
    return mixed.to_bytes(size, "little")
