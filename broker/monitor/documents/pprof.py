"""The format of profiles that `go tool pprof` and its relatives read.

Owns: the encoding.
May not touch: what was sampled.
Spec: profile.proto of pprof: a protocol buffer, gzipped. Texts are numbers of a table that begins
with the empty one; functions and locations are numbered from 1."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

Frame = tuple[str, str, int]  # function, file, line
Stack = tuple[Frame, ...]  # the innermost one first

_SAMPLE_TYPE, _SAMPLE, _LOCATION, _FUNCTION, _TEXT = 1, 2, 4, 5, 6
_TIME, _DURATION, _PERIOD_TYPE, _PERIOD = 9, 10, 11, 12
_GZIP = 16 + zlib.MAX_WBITS


def encode(
    samples: Mapping[Stack, int],
    *,
    kind: tuple[str, str],
    began_ns: int,
    duration_ns: int = 0,
    period_ns: int = 0,
) -> bytes:
    """`kind`: what the values of the samples are, and their unit."""
    texts = {"": 0}
    functions: dict[tuple[str, str], int] = {}
    locations: dict[Frame, int] = {}

    def text(word: str) -> int:
        return texts.setdefault(word, len(texts))

    values = _field(1, text(kind[0])) + _field(2, text(kind[1]))
    parts = [_message(_SAMPLE_TYPE, values)]
    for stack, value in samples.items():
        numbers = (locations.setdefault(frame, len(locations) + 1) for frame in stack)
        where = b"".join(map(_varint, numbers))
        parts.append(_message(_SAMPLE, _message(1, where) + _message(2, _varint(value))))
    for (name, file, line), number in locations.items():
        function = functions.setdefault((name, file), len(functions) + 1)
        shown = _message(4, _field(1, function) + _field(2, line))
        parts.append(_message(_LOCATION, _field(1, number) + shown))
    for (name, file), number in functions.items():
        words = _field(2, text(name)) + _field(3, text(name)) + _field(4, text(file))
        parts.append(_message(_FUNCTION, _field(1, number) + words))
    parts += [_message(_TEXT, word.encode()) for word in texts]
    parts += [_field(_TIME, began_ns), _field(_DURATION, duration_ns)]
    if period_ns:
        parts += [_message(_PERIOD_TYPE, values), _field(_PERIOD, period_ns)]
    stream = zlib.compressobj(wbits=_GZIP)
    return stream.compress(b"".join(parts)) + stream.flush()


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _field(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _message(number: int, body: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(body)) + body
