"""Converts messages of an origin to rows of a block, for mirrors and sources.

Owns: reading MSG and HMSG of a push consumer into rows with the sequences and times of the origin,
and the header line that a source adds to each row.
May not touch: sockets, the stream that is filled.
Spec: NATS client protocol, MSG and HMSG; JetStream ack reply subjects. This twin is the
specification of _origins.pyx."""

from __future__ import annotations

from broker.store.block.block_format import SEQ_MAX, Block
from broker.store.block.builder_py import BlockBuilder
from broker.wire import headers as wire_headers

_ACK = b"$JS.ACK."
_DIGITS_MAX = 18  # 18 digits always fit a signed 64-bit integer; times have 19
_TIME_DIGITS = 19
_LINE_MAX = 4096
_SIZE_DIGITS_MAX = 9
_Head = tuple[bytes, bytes, int, int]  # subject, reply, size of the headers, of headers and payload


def append_delivered(
    builder: BlockBuilder, received: bytes, at: int, *, expected: int, rows_max: int, bytes_max: int
) -> tuple[int, int]:
    """Append the complete messages from `at` on that have consecutive consumer sequences from
    `expected` on. Returns where the first message begins that was not appended, and how many are
    pending after the last appended one (-1 if none was appended). Stops, without an error, at
    anything else: a status, an incomplete message, an unexpected sequence, a full builder."""
    pending = -1
    while builder.rows < rows_max and builder.nbytes < bytes_max:
        end = received.find(b"\r\n", at, at + _LINE_MAX)
        head = _head(received[at:end]) if end >= 0 else None
        if head is None:
            break
        subject, reply, header_size, size = head
        body, stop = end + 2, end + 4 + size
        numbers = _numbers(reply)
        if stop > len(received) or received[stop - 2 : stop] != b"\r\n" or numbers is None:
            break
        seq, consumer_seq, time_ns, left = numbers
        if consumer_seq != expected or seq <= builder.last_seq or seq > SEQ_MAX:
            break
        headers = received[body : body + header_size]
        data = received[body + header_size : body + size]
        builder.append(subject, headers, data, time_ns=time_ns, seq=seq)
        expected, pending, at = expected + 1, left, stop
    return at, pending


def append_sourced(builder: BlockBuilder, block: Block, *, head: bytes, tail: bytes) -> None:
    """The rows of `block`, each with one more header line: head, sequence, tail, subject."""
    for i in range(block.rows):
        subject, headers = block.subject(i), block.headers(i)
        line = b"%b%d%b%b\r\n" % (head, block.seq(i), tail, subject)
        headers = wire_headers.add_lines(headers, line)
        builder.append(subject, headers, block.data(i), time_ns=block.time(i), seq=block.seq(i))


def _head(line: bytes) -> _Head | None:
    words = line.split(b" ")
    if words[0] == b"MSG" and len(words) == 5:
        sizes = [b"0", words[4]]
    elif words[0] == b"HMSG" and len(words) == 6:
        sizes = words[4:]
    else:
        return None
    if not words[3].startswith(_ACK):
        return None
    if not all(0 < len(word) <= _SIZE_DIGITS_MAX and word.isdigit() for word in sizes):
        return None
    header_size, size = int(sizes[0]), int(sizes[1])
    return (words[1], words[3], header_size, size) if header_size <= size else None


def _numbers(reply: bytes) -> tuple[int, int, int, int] | None:
    """Stream and consumer sequence, time, pending. The newer form has two more tokens before them
    and may have more after them."""
    tokens = reply.split(b".")
    first = 5 if len(tokens) < 11 else 7
    found = tokens[first : first + 4]
    if len(found) < 4:
        return None
    for place, token in enumerate(found):
        most = _TIME_DIGITS if place == 2 else _DIGITS_MAX
        if not (0 < len(token) <= most and token.isdigit()):
            return None
    seq, consumer_seq, time_ns, pending = (int(token) for token in found)
    return (seq, consumer_seq, time_ns, pending) if time_ns <= SEQ_MAX else None
