"""Subject mappings: the grammar of destinations, and the mapping of subjects.

Owns: `$1`, `{{wildcard(1)}}`, `{{partition(n,i)}}` and the other functions.
May not touch: random numbers; the caller passes a seed for `random`.
Spec: NATS ADR-30; `>` in both or neither, no `*` in the destination."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from broker.subjects.grammar import matches, valid_subject

_FUNCTION: Final = re.compile(r"\{\{\s*([A-Za-z]+)\s*\((.*)\)\s*\}\}")
_INDEX_AND_NUMBER: Final = frozenset(
    {"splitfromleft", "splitfromright", "slicefromleft", "slicefromright", "left", "right"}
)
_INT32_MAX: Final = 2**31 - 1
_MEMO_MAX: Final = 65536  # size of the cache of mapped subjects
_MEMO_BYTES_MAX: Final = 256  # of a subject and its mapping together; longer ones are not cached


@dataclass(eq=False)
class BadMapping(Exception):
    """The source or destination is invalid; the text says why."""

    reason: str

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True)
class _Token:
    """One token of a destination. `name` empty: plain text."""

    name: str
    text: bytes = b""  # plain text, or the delimiter of a split
    wildcards: tuple[int, ...] = ()  # wildcards of the source, counted from 1
    number: int = 0


class Mapping:
    """Maps subjects that match `src` to `dest`. The constructor raises BadMapping."""

    __slots__ = ("_memo", "_positions", "_tokens", "_wildcards", "dest", "src", "varies")

    def __init__(self, src: str, dest: str, *, wildcards: bool = False) -> None:
        """`wildcards`: subjects may contain the tokens `*` and `>`, which are treated as plain
        text. Requests for filtered consumers have them."""
        self._wildcards = wildcards
        src = src or ">"
        source, target = src.split("."), dest.split(".")
        both_valid = valid_subject(src.encode(), wildcards=True) and _valid_destination(target)
        if not both_valid or (source[-1] == ">") != (target[-1] == ">"):
            raise BadMapping("invalid subject")
        self.src, self.dest = src.encode(), dest.encode()
        # Token positions of the wildcards of the source.
        self._positions = [at for at, part in enumerate(source) if part == "*"]
        is_literal = not self._positions and source[-1] != ">"
        self._tokens = [self._checked(token, is_literal=is_literal) for token in target]
        self.varies = any(token.name == "random" for token in self._tokens)
        self._memo: dict[bytes, bytes | None] = {}

    def _checked(self, text: str, *, is_literal: bool) -> _Token:
        try:
            token = _parse(text)
        except BadMapping as problem:
            raise BadMapping(f"invalid mapping destination: {problem} in {text}") from None
        if is_literal and token.name == "partition":
            return _Token("partition", number=token.number)  # of the whole subject
        for index in token.wildcards:
            if not 1 <= index <= len(self._positions):
                where = text if is_literal else f"{text}: [{index}]"
                raise BadMapping(
                    f"invalid mapping destination: wildcard index out of range in {where}"
                )
        return token

    def __call__(self, subject: bytes, *, seed: int = 0) -> bytes | None:
        """The mapped subject; None when the source does not match or the result is not a valid
        subject. Equal seeds give equal results."""
        if self.varies:
            return self._map(subject, seed)
        memo = self._memo
        if subject in memo:
            return memo[subject]
        mapped = self._map(subject, seed)
        if len(subject) + len(mapped or b"") <= _MEMO_BYTES_MAX:
            if len(memo) >= _MEMO_MAX:
                memo.clear()
            memo[subject] = mapped
        return mapped

    @property
    def parts(self) -> int:
        """How many parts of a subject the destination repeats or hashes."""
        return sum(max(1, len(token.wildcards)) for token in self._tokens if token.name)

    def _map(self, subject: bytes, seed: int) -> bytes | None:
        if not matches(subject, self.src):
            return None
        have = subject.split(b".")
        made: list[bytes] = []
        for at, token in enumerate(self._tokens):
            if token.name:
                of = [have[self._positions[index - 1]] for index in token.wildcards]
                made.append(_carried(token, of, subject, b"%d %d" % (seed, at)))
            elif token.text == b">" and at == len(self._tokens) - 1:
                made += have[self.src.count(b".") :]
            else:
                made.append(token.text)
        mapped = b".".join(made)
        return mapped if valid_subject(mapped, wildcards=self._wildcards) else None


def _carried(token: _Token, of: list[bytes], subject: bytes, dice: bytes) -> bytes:
    """The result of one destination function; it may hold several tokens."""
    number = token.number
    match token.name:
        case "partition":
            key = b"".join(of) if of else subject
            return b"%d" % (_fnv1a(key) % number if number else 0)
        case "random":
            return b"%d" % (_fnv1a(dice) % number if number else 0)
        case "split":
            return b".".join(part for part in of[0].split(token.text) if part)
    value = of[0]
    if token.name == "wildcard" or not 0 < number < len(value):
        return value
    match token.name:
        case "left":
            return value[:number]
        case "right":
            return value[-number:]
        case "splitfromleft":
            return value[:number] + b"." + value[number:]
        case "splitfromright":
            return value[:-number] + b"." + value[-number:]
    short = len(value) % number if token.name == "slicefromright" else 0
    parts = [value[:short]] if short else []
    parts += [value[at : at + number] for at in range(short, len(value), number)]
    return b".".join(parts)


def _fnv1a(key: bytes) -> int:
    value = 2166136261
    for byte in key:
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    return value


def _valid_destination(tokens: list[str]) -> bool:
    """A valid subject, except that blanks are allowed inside `{{ }}`."""
    bare = ["x" if _FUNCTION.fullmatch(token) else token for token in tokens]
    return "*" not in tokens and valid_subject(".".join(bare).encode(), wildcards=True)


def _parse(token: str) -> _Token:
    if token.startswith("$") and token[1:].isascii() and token[1:].isdigit():
        return _Token("wildcard", wildcards=(int(token[1:]),))
    if not (token.startswith("{{") and token.endswith("}}")):
        return _Token("", token.encode())
    found = _FUNCTION.fullmatch(token)
    if found is None:
        raise BadMapping("unknown function")
    name, arguments = found[1].lower(), [part.strip() for part in found[2].split(",")]
    if name == "wildcard":
        return _Token(name, wildcards=(_number(_counted(arguments, 1)[0]),))
    if name == "partition":
        numbers = [_number(part) for part in arguments]
        return _Token(name, wildcards=tuple(numbers[1:]), number=numbers[0])
    if name == "random":
        return _Token(name, number=_number(_counted(arguments, 1)[0]))
    if name == "split":
        index, delimiter = _counted(arguments, 2)
        if not delimiter or " " in delimiter:
            raise BadMapping("function argument is invalid or in the wrong format")
        return _Token(name, delimiter.encode(), (_number(index),))
    if name in _INDEX_AND_NUMBER:
        first, second = _counted(arguments, 2)
        return _Token(name, wildcards=(_number(first),), number=_number(second))
    raise BadMapping("unknown function")


def _counted(arguments: list[str], wanted: int) -> list[str]:
    if len(arguments) < wanted or arguments == [""]:
        raise BadMapping("not enough arguments passed to the function")
    if len(arguments) > wanted:
        raise BadMapping("too many arguments passed to the function")
    return arguments


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > _INT32_MAX:
        raise BadMapping("function argument is invalid or in the wrong format")
    return int(text)
