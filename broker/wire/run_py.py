"""A run of publishes: consecutive PUB operations of one chunk.

Owns: the messages of the run and their encoding as MSG/HMSG.
May not touch: the meaning of subjects, subscriptions, sockets.
Spec: NATS client protocol, MSG and HMSG; the compiled twin is _parser.pyx (PubRun)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from broker.wire.text_py import encode_msg

_ACK_TOKENS = 9
_ACK_DIGITS_MAX = 18  # 18 digits always fit a signed 64-bit integer
AckGroup = tuple[bytes, bytes, list[int], list[int]]  # stream, consumer, stream seqs, consumer seqs
Message = tuple[bytes, bytes, bytes, bytes]  # subject, reply, headers, payload


@final
class PubRun:
    """Immutable once handed out. Ranges are `start <= i < stop` and must lie inside the run."""

    __slots__ = ("_messages", "has_headers", "total_bytes")

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self.total_bytes = 0  # headers and payloads of all messages
        self.has_headers = False  # some message came as HPUB (the peer must have offered headers)

    @staticmethod
    def of(messages: Sequence[Message]) -> PubRun:
        run = PubRun()
        for subject, reply, headers, payload in messages:
            run._add(subject, reply, headers, payload, hpub=bool(headers))
        return run

    def __len__(self) -> int:
        return len(self._messages)

    def segments(self, start: int = 0, stop: int = -1) -> list[tuple[bytes, int, int]]:
        """(subject, start, stop) for each range of consecutive equal subjects."""
        end = len(self._messages) if stop < 0 else stop
        self._check(start, end)
        found: list[tuple[bytes, int, int]] = []
        for i in range(start + 1, end + 1):
            if i == end or self._messages[i][0] != self._messages[start][0]:
                found.append((self._messages[start][0], start, i))
                start = i
        return found

    def message(self, i: int) -> Message:
        self._check(i, i + 1)
        return self._messages[i]

    def names(self, i: int) -> tuple[bytes, bytes]:
        """Subject and reply, without a copy of the payload."""
        self._check(i, i + 1)
        return self._messages[i][:2]

    def any_reply(self, start: int, stop: int) -> bool:
        self._check(start, stop)
        return any(reply for _, reply, _, _ in self._messages[start:stop])

    def size(self, start: int, stop: int) -> int:
        """Header and payload bytes of the range."""
        self._check(start, stop)
        return sum(len(headers) + len(data) for _, _, headers, data in self._messages[start:stop])

    def ack_spans(self) -> list[tuple[int, int, list[AckGroup]]]:
        """The ranges of the run that are plain acks without a reply subject, as
        (start, stop, groups); consecutive acks of one consumer are one group."""
        spans: list[tuple[int, int, list[AckGroup]]] = []
        for row, message in enumerate(self._messages):
            ack = _plain_ack(*message)
            if ack is None:
                continue
            stream, consumer, stream_seq, consumer_seq = ack
            if spans and spans[-1][1] == row:
                start, _, groups = spans.pop()
            else:
                start, groups = row, []
            if not groups or groups[-1][:2] != (stream, consumer):
                groups.append((stream, consumer, [], []))
            groups[-1][2].append(stream_seq)
            groups[-1][3].append(consumer_seq)
            spans.append((start, row + 1, groups))
        return spans

    def begins(self, subjects: tuple[bytes, ...], replies: tuple[bytes, ...]) -> bool:
        """Whether the subject or the reply of a row begins with one of these, none of which is
        empty."""
        return any(
            subject.startswith(subjects) or reply.startswith(replies)
            for subject, reply, _, _ in self._messages
        )

    def rows_naming(self, name: bytes) -> list[int]:
        """The rows that have a header of this name, case-insensitive; `name` is in lower case."""
        wanted = b"\n" + name + b":"
        if not self.has_headers:
            return []
        return [row for row, message in enumerate(self._messages) if wanted in message[2].lower()]

    def encode(self, start: int, stop: int, sid: bytes, headers_ok: bool) -> bytes:  # noqa: FBT001
        """The range as one subscriber receives it; headers are cut off unless `headers_ok`."""
        self._check(start, stop)
        return b"".join(
            encode_msg(subject, sid, reply, headers if headers_ok else b"", payload)
            for subject, reply, headers, payload in self._messages[start:stop]
        )

    def _add(
        self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, *, hpub: bool
    ) -> None:
        """Only for the parser: a run grows only while its chunk is being parsed."""
        self._messages.append((subject, reply, headers, payload))
        self.total_bytes += len(headers) + len(payload)
        self.has_headers = self.has_headers or hpub

    def _check(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= len(self._messages):
            raise IndexError(f"rows {start}:{stop} of a run of {len(self._messages)}")


def _plain_ack(
    subject: bytes, reply: bytes, headers: bytes, payload: bytes
) -> tuple[bytes, bytes, int, int] | None:
    """Stream, consumer and both sequences of a plain ack; None for anything else."""
    if not subject.startswith(b"$JS.ACK.") or reply or headers or payload not in (b"", b"+ACK"):
        return None
    tokens = subject.split(b".")
    if len(tokens) != _ACK_TOKENS:
        return None
    if not all(0 < len(t) <= _ACK_DIGITS_MAX and t.isdigit() for t in tokens[5:7]):
        return None
    return tokens[2], tokens[3], int(tokens[5]), int(tokens[6])
