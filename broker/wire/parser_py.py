"""Client protocol grammar: bytes in, events out. This twin is the specification of _parser.pyx.

Owns: the bytes of an incomplete event, and the limits on them.
May not touch: what an event means, sockets, credentials.
Spec: NATS client protocol. In short:

  line      = word [blanks arguments] [CR] LF      word in either case, blanks = spaces and tabs
  PING PONG +OK                                    the rest of the line is ignored
  CONNECT INFO <text>                              the blank before the text may be missing
  SCAN -ERR <text>                                 at least one blank after the word, as below
  SUB <subject> [queue] <sid>    UNSUB <sid> [max]
  PUB <subject> [reply] <size>   HPUB <subject> [reply] <header size> <total size>
                                                   size = 1..9 digits; body CR LF follows

A server on a leaf node connection sends, instead of the last two lines and of SCAN:

  LS+ <subject> [queue weight]   LS- <subject> [queue]
  LMSG <subject> [reply] <size>  HMSG <subject> [reply] <header size> <total size>
                                                   `+ reply queue...` or `| queue...` may stand in
                                                   the place of the reply: the message is for these
                                                   queue groups too

A carriage return inside the arguments separates them like a blank. The arguments (from the first
non-blank byte up to, but not including, CR LF) may be at most max_control_line bytes long."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final, Literal, NoReturn

from broker.wire.ops import (
    BODY_UNTERMINATED,
    CLOSE_SILENTLY,
    CONTROL_LINE_EXCEEDED,
    PAYLOAD_EXCEEDED,
    SIZE_DIGITS_MAX,
    UNKNOWN_OPERATION,
    Op,
    ProtocolViolation,
)
from broker.wire.run_py import PubRun

Event = (
    tuple[Literal[Op.PUB], PubRun]
    | tuple[Literal[Op.SUB], bytes, bytes | None, bytes]
    | tuple[Literal[Op.UNSUB], bytes, int]
    | tuple[Literal[Op.CONNECT], bytes]
    | tuple[Literal[Op.INFO], bytes]
    | tuple[Literal[Op.ERR], bytes]
    | tuple[Literal[Op.SCAN], bytes]
    | tuple[Literal[Op.PING]]
    | tuple[Literal[Op.PONG]]
    | tuple[Literal[Op.OK]]
    | tuple[Literal[Op.LMSG], PubRun, bytes]
    | tuple[Literal[Op.LSUB], bytes, bytes, int]
    | tuple[Literal[Op.LUNSUB], bytes, bytes]
)


class _Rest(Enum):
    """What may follow a word on its line."""

    IGNORED = auto()
    ANYTHING = auto()
    AFTER_BLANK = auto()


_WORDS: Final[dict[bytes, tuple[Op, _Rest]]] = {
    b"PUB": (Op.PUB, _Rest.AFTER_BLANK),
    b"HPUB": (Op.PUB, _Rest.AFTER_BLANK),
    b"SUB": (Op.SUB, _Rest.AFTER_BLANK),
    b"UNSUB": (Op.UNSUB, _Rest.AFTER_BLANK),
    b"SCAN": (Op.SCAN, _Rest.AFTER_BLANK),
    b"-ERR": (Op.ERR, _Rest.AFTER_BLANK),
    b"CONNECT": (Op.CONNECT, _Rest.ANYTHING),
    b"INFO": (Op.INFO, _Rest.ANYTHING),
    b"PING": (Op.PING, _Rest.IGNORED),
    b"PONG": (Op.PONG, _Rest.IGNORED),
    b"+OK": (Op.OK, _Rest.IGNORED),
}
_LEAF_WORDS: Final[dict[bytes, tuple[Op, _Rest]]] = {
    b"LMSG": (Op.LMSG, _Rest.AFTER_BLANK),
    b"HMSG": (Op.LMSG, _Rest.AFTER_BLANK),
    b"LS+": (Op.LSUB, _Rest.AFTER_BLANK),
    b"LS-": (Op.LUNSUB, _Rest.AFTER_BLANK),
    **{word: _WORDS[word] for word in (b"-ERR", b"CONNECT", b"INFO", b"PING", b"PONG", b"+OK")},
}
_WORD_LENGTH_MAX = max(map(len, _WORDS))
_NOT_BLANK = re.compile(rb"[^ \t]")
_ARGUMENT = re.compile(rb"[^ \t\r]+")
_SEPARATORS = b" \t\r"


class ClientParser:
    """However the bytes are split into chunks, the events and the violation are the same."""

    __slots__ = (
        "_failure",
        "_held",
        "_leaf",
        "_parts",
        "_queues",
        "_wanted",
        "_words",
        "max_control_line",
        "max_payload",
    )

    def __init__(self, *, max_control_line: int, max_payload: int, leaf: bool = False) -> None:
        """`leaf`: the grammar of a leaf node connection."""
        self._leaf = leaf
        self._words = _LEAF_WORDS if leaf else _WORDS
        self._queues = b""  # the groups that the messages of the run are for, between blanks
        self.max_control_line = max_control_line
        self.max_payload = max_payload  # header plus payload; negative: no limit
        self._parts: list[bytes] = []  # an incomplete event: at most one control line and its body
        self._held = 0  # Invariant: the sum of the lengths in _parts
        self._wanted = 0  # bytes needed before parsing can continue
        self._failure: str | Literal[False] | None = False

    @property
    def unparsed(self) -> bytes:
        """Bytes received that are not part of an event yet (blanks may have been dropped)."""
        return b"".join(self._parts)

    def receive(self, chunk: bytes) -> list[Event]:
        """Events in wire order; consecutive publishes of the chunk come as one PubRun, those of a
        leaf node as long as they are for the same queue groups.

        Raises ProtocolViolation, which carries the events before it. The parser cannot be used
        after that: it raises the same violation again."""
        if self._failure is not False:
            raise ProtocolViolation(self._failure, events=[])
        self._parts.append(chunk)
        self._held += len(chunk)
        if self._held < self._wanted:  # a large body that arrives in many chunks is joined once
            return []
        data = chunk if len(self._parts) == 1 else b"".join(self._parts)
        events: list[Event] = []
        run = PubRun()
        position = 0
        self._hold(b"", wanted=0)
        try:
            while 0 <= position < len(data):
                position, run = self._take(data, position, run, events)
        except ProtocolViolation as violation:
            self._failure = violation.text
            self._hold(b"", wanted=0)
            self._end_run(run, events)
            raise ProtocolViolation(violation.text, events=events) from None
        self._end_run(run, events)
        return events

    def _take(
        self, data: bytes, start: int, run: PubRun, events: list[Event]
    ) -> tuple[int, PubRun]:
        """One operation at `start`: where the next begins (-1: incomplete, kept) and the run."""
        word = _word_at(data, start, self._words)
        if word is None:
            return self._hold(data[start:]), run
        op, rest = self._words[word]
        after = start + len(word)
        if rest is _Rest.IGNORED:
            newline = data.find(b"\n", after)
            if newline < 0:
                return self._hold(data[start:after]), run  # the ignored rest is not kept
            run = self._end_run(run, events)
            events.append((op,))  # type: ignore[arg-type]
            return newline + 1, run
        if rest is _Rest.AFTER_BLANK and after < len(data) and data[after] not in b" \t":
            _violate(UNKNOWN_OPERATION)
        first = _NOT_BLANK.search(data, after)
        if first is None:
            return self._hold(data[start : after + 1]), run  # one blank stands for all of them
        newline = data.find(b"\n", first.start())
        arguments = data[first.start() : newline if newline >= 0 else len(data)]
        if len(arguments.removesuffix(b"\r")) > self.max_control_line:
            _violate(CONTROL_LINE_EXCEEDED)
        if newline < 0:
            return self._hold(data[start:after] + b" " + arguments), run
        if op is Op.PUB:
            return self._take_publish(data, start, newline + 1, arguments, run), run
        if op is Op.LMSG:
            return self._take_leaf_message(data, start, newline + 1, arguments, run, events)
        event = _event(op, arguments)  # may raise; the caller still owns the run then
        run = self._end_run(run, events)
        events.append(event)
        return newline + 1, run

    def _take_publish(
        self, data: bytes, start: int, body: int, arguments: bytes, run: PubRun
    ) -> int:
        hpub = data[start] in b"Hh"
        fields = _ARGUMENT.findall(arguments)
        sizes = 2 if hpub else 1
        if len(fields) not in (1 + sizes, 2 + sizes):
            _violate(CLOSE_SILENTLY)
        reply = fields[1] if len(fields) == 2 + sizes else b""
        return self._take_body(data, start, body, fields, run, reply=reply)

    def _take_leaf_message(  # noqa: PLR0917 - in step with _take_publish
        self, data: bytes, start: int, body: int, arguments: bytes, run: PubRun,
        events: list[Event],
    ) -> tuple[int, PubRun]:  # fmt: skip
        fields = _ARGUMENT.findall(arguments)
        sizes = 2 if data[start] in b"Hh" else 1
        reply, queues = b"", b""
        if len(fields) == 2 + sizes:
            reply = fields[1]
        elif len(fields) > 2 + sizes and fields[1] in (b"+", b"|"):
            first = 3 if fields[1] == b"+" else 2
            reply = fields[2] if first == 3 else b""
            queues = b" ".join(fields[first:-sizes])
        elif len(fields) != 1 + sizes:
            _violate(CLOSE_SILENTLY)
        if queues == self._queues:
            return self._take_body(data, start, body, fields, run, reply=reply), run
        other = PubRun()
        after = self._take_body(data, start, body, fields, other, reply=reply)
        if after >= 0:  # may have raised: the caller still owns the run then
            self._end_run(run, events)
            self._queues, run = queues, other
        return after, run

    def _take_body(
        self, data: bytes, start: int, body: int, fields: list[bytes], run: PubRun, *, reply: bytes
    ) -> int:
        with_headers = data[start] in b"Hh"
        total = _size(fields[-1])
        header = _size(fields[-2]) if with_headers else 0
        if header < 0 or total < 0 or header > total:
            _violate(CLOSE_SILENTLY)
        if 0 <= self.max_payload < total:
            _violate(PAYLOAD_EXCEEDED)
        end = body + total
        if len(data) < end + 2:
            return self._hold(data[start:], wanted=end + 2 - start)
        if data[end : end + 2] != b"\r\n":
            _violate(BODY_UNTERMINATED)
        payload = body + header
        run._add(  # noqa: SLF001
            fields[0], reply, data[body:payload], data[payload:end], hpub=with_headers
        )
        return end + 2

    def _hold(self, rest: bytes, *, wanted: int = 0) -> int:
        self._parts = [rest] if rest else []
        self._held = len(rest)
        self._wanted = wanted
        return -1

    def _end_run(self, run: PubRun, events: list[Event]) -> PubRun:
        if len(run) == 0:
            return run
        events.append((Op.LMSG, run, self._queues) if self._leaf else (Op.PUB, run))
        return PubRun()


def _word_at(data: bytes, start: int, words: dict[bytes, tuple[Op, _Rest]]) -> bytes | None:
    """The word that begins at `start`; None when the bytes so far are only part of one."""
    candidate = data[start : start + _WORD_LENGTH_MAX].upper()
    for word in words:
        if candidate.startswith(word):
            return word
    if not any(word.startswith(candidate) for word in words):
        _violate(UNKNOWN_OPERATION)
    return None


def _event(op: Op, arguments: bytes) -> Event:
    if op is Op.SUB:
        fields = _ARGUMENT.findall(arguments)
        if len(fields) not in (2, 3):
            _violate(CLOSE_SILENTLY)
        return (Op.SUB, fields[0], fields[1] if len(fields) == 3 else None, fields[-1])
    if op is Op.UNSUB:
        fields = _ARGUMENT.findall(arguments)
        if len(fields) not in (1, 2):
            _violate(CLOSE_SILENTLY)
        # A maximum that is not a number unsubscribes at once, like zero.
        return (Op.UNSUB, fields[0], max(_size(fields[1]), 0) if len(fields) == 2 else 0)
    if op is Op.LSUB:
        fields = _ARGUMENT.findall(arguments)
        if len(fields) not in (1, 3):
            _violate(CLOSE_SILENTLY)
        # A weight that is not a number counts as one member.
        weight = max(_size(fields[2]), 1) if len(fields) == 3 else 1
        return (Op.LSUB, fields[0], fields[1] if len(fields) == 3 else b"", weight)
    if op is Op.LUNSUB:
        fields = _ARGUMENT.findall(arguments)
        if len(fields) not in (1, 2):
            _violate(CLOSE_SILENTLY)
        return (Op.LUNSUB, fields[0], fields[1] if len(fields) == 2 else b"")
    return (op, arguments.strip(_SEPARATORS))  # type: ignore[return-value]


def _size(field: bytes) -> int:
    """-1 unless the field is one to nine decimal digits."""
    return int(field) if field.isdigit() and len(field) <= SIZE_DIGITS_MAX else -1


def _violate(text: str | None) -> NoReturn:
    raise ProtocolViolation(text)
