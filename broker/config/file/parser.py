"""The configuration file format: text in, a tree of positioned values out.

Owns: the grammar, variables and includes.
May not touch: what a key means (see apply.py).
Spec: NATS server configuration file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

Scalar = str | int | float | bool | datetime

BLANKS = " \t\r"
WORD_END = " \t\r\n,;]}"
ESCAPES = {"t": "\t", "n": "\n", "r": "\r", '"': '"', "\\": "\\"}
INCLUDE_DEPTH_MAX = 16
NESTING_MAX = 64

_INTEGER = re.compile(r"(-?\d+)([kmgtpe](?:b|i|ib)?)?", re.IGNORECASE)
_FLOAT = re.compile(r"-?\d+\.\d+")
_DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_DATE_LIKE = re.compile(r"\d+-")
_BCRYPT = re.compile(r"\$2[abxy]\$")
_POWERS = {letter: power for power, letter in enumerate("kmgtpe", start=1)}
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


@dataclass(slots=True)
class Item:
    """A value and its position. `used` is set when a variable refers to it."""

    value: Scalar | list[Item] | dict[str, Item]
    line: int
    column: int
    used: bool = False


Map = dict[str, Item]


class ParseError(Exception):
    """Syntax error; str() is the message for the operator."""


def parse(
    text: str, *, path: str = "", environ: Mapping[str, str] | None = None,
    included: list[str] | None = None,
) -> Map:  # fmt: skip
    """The whole file; `included` gets the paths of the files it includes. Raises ParseError."""
    reader = _Reader(text, Path(path).parent, os.environ if environ is None else environ)
    if included is not None:
        reader.included = included
    return reader.document()


def parse_file(path: str, included: list[str] | None = None) -> tuple[Map, bytes]:
    """The tree and the raw bytes. Raises ParseError, OSError."""
    raw = Path(path).read_bytes()
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise ParseError(f"Parse error on line 1: 'not UTF-8: {error.reason}'") from error
    return parse(text, path=path, included=included), raw


class _Reader:
    def __init__(
        self, text: str, folder: Path, environ: Mapping[str, str], *, depth: int = 0
    ) -> None:
        self._text = text
        self._at = 0
        self._line = 1
        self._line_start = 0
        self._folder = folder
        self._environ = environ
        self._depth = depth
        self._nesting = 0
        self._scopes: list[Map] = []
        self.included: list[str] = []

    # -- structure --------------------------------------------------------------------------

    def document(self, into: Map | None = None) -> Map:
        root: Map = {} if into is None else into
        if into is None:
            self._scopes.append(root)
        self._skip(newlines=True)
        if self._peek() == "{":
            self._next()
            self._entries(root, end="}")
            self._skip(newlines=True)
            if self._peek():
                self._fail(f"expected the end of the file, but got '{self._peek()}'")
        else:
            self._entries(root, end="")
        return root

    def _entries(self, into: Map, *, end: str) -> None:
        while True:
            self._skip(newlines=True, separators=True)
            character = self._peek()
            if character == end:
                self._next()
                return
            if not character:
                self._fail("unexpected end of file, expected map end '}'")
            self._entry(into, end=end)

    def _entry(self, into: Map, *, end: str) -> None:
        line, column = self._line, self._at - self._line_start + 1
        quoted = self._peek() in "'\""
        key = self._key()
        self._skip_blanks()
        separated = self._peek() in ("=", ":")
        if separated:
            self._next()
        if key.lower() == "include" and not quoted and not separated:
            self._include(into)
            self._end_of_value(end)
            return
        self._skip_blanks()
        if not separated or end:
            self._skip(newlines=True)
        if self._peek() in ("\n", ""):
            self._fail("Expected value but found new line" if self._peek() else "unexpected EOF")
        item = Item(self._value(), line, column)
        into[key] = item
        self._end_of_value(end)

    def _key(self) -> str:
        character = self._peek()
        if character in "'\"":
            return self._quoted(character)
        start = self._at
        while (character := self._peek()) and character not in " \t\r\n=:{":
            self._next()
        if self._at == start:
            self._fail(f"Unexpected key separator '{character}'")
        return self._text[start : self._at]

    def _end_of_value(self, end: str) -> None:
        self._skip_blanks()
        character = self._peek()
        if not character or character in "\n,;#" or (end and character == end):
            return
        if self._text.startswith("//", self._at):
            return
        if end:
            self._fail(
                f"Expected a map value terminator ',' or a map terminator '{end}', "
                f"but got '{character}' instead"
            )
        self._fail(
            "Expected a top-level value to end with a new line, comment or EOF, "
            f"but got '{character}' instead"
        )

    # -- values -----------------------------------------------------------------------------

    def _value(self) -> Scalar | list[Item] | Map:
        character = self._peek()
        if character in "{[":
            self._nesting += 1
            if self._nesting > NESTING_MAX:
                self._fail("nested too deeply")
            self._next()
            nested: list[Item] | Map
            if character == "{":
                nested = {}
                self._scopes.append(nested)
                self._entries(nested, end="}")
                self._scopes.pop()
            else:
                nested = self._array()
            self._nesting -= 1
            return nested
        if character in "'\"":
            return self._quoted(character)
        if character == "(":
            return self._block()
        return self._word()

    def _array(self) -> list[Item]:
        items: list[Item] = []
        while True:
            self._skip(newlines=True, separators=True)
            character = self._peek()
            if character == "]":
                self._next()
                return items
            if not character:
                self._fail("unexpected end of file, expected array end ']'")
            line, column = self._line, self._at - self._line_start + 1
            items.append(Item(self._value(), line, column))
            self._skip_blanks()
            character = self._peek()
            if character not in "\n,]#" and not self._text.startswith("//", self._at):
                self._fail(
                    "Expected an array value terminator ',' or an array terminator ']', "
                    f"but got '{character}' instead"
                )

    def _quoted(self, quote: str) -> str:
        self._next()
        parts: list[str] = []
        while (character := self._peek()) != quote:
            if not character:
                self._fail("Unexpected EOF in a quoted string")
            if character == "\\" and quote == '"':
                parts.append(self._escape())
            else:
                parts.append(character)
                self._next()
        self._next()
        return "".join(parts)

    def _escape(self) -> str:
        self._next()
        character = self._peek()
        self._next()
        if character in ESCAPES and character:
            return ESCAPES[character]
        if character == "x":
            digits = self._text[self._at : self._at + 2]
            self._at += 2
            if re.fullmatch(r"[0-9a-fA-F]{2}", digits):
                return chr(int(digits, 16))
            self._fail(f"Expected two hexadecimal digits after '\\x', but got '{digits}'")
        return self._fail(
            f"Invalid escape character '{character}'. Only the following escape characters are "
            'allowed: \\xXX, \\t, \\n, \\r, \\", \\\\.'
        )

    def _block(self) -> str:
        self._next()
        start = self._at
        while character := self._peek():
            if character == ")" and not self._text[self._line_start : self._at].strip():
                text = self._text[start : self._at]
                self._next()
                return text.strip("\n")
            self._next()
        return self._fail("unexpected end of file in a block string")

    def _word(self) -> Scalar | list[Item] | Map:
        parts: list[str] = []
        while (character := self._peek()) and character not in WORD_END:
            if character == "\\":
                parts.append(self._escape())
            else:
                parts.append(character)
                self._next()
        word = "".join(parts)
        if not word:
            self._fail(f"Expected a value, but got '{self._peek()}' instead")
        if word.startswith("$") and not _BCRYPT.match(word):
            return self._variable(word[1:])
        return self._scalar(word)

    def _scalar(self, word: str) -> Scalar:
        lowered = word.lower()
        if lowered in _BOOLEANS:
            return _BOOLEANS[lowered]
        if found := _INTEGER.fullmatch(word):
            suffix = (found[2] or "").lower()
            base = 1024 if len(suffix) > 1 else 1000
            return int(found[1]) * (base ** _POWERS[suffix[0]] if suffix else 1)
        if _FLOAT.fullmatch(word):
            return float(word)
        if _DATE.fullmatch(word):
            try:
                return datetime.strptime(word, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
            except ValueError:
                self._fail(f"Expected Zulu formatted DateTime, but got '{word}'")
        if _DATE_LIKE.match(word):
            self._fail(f"Expected an ISO8601 full date string, but got '{word}'")
        return word

    def _variable(self, name: str) -> Scalar | list[Item] | Map:
        for scope in reversed(self._scopes):
            if name in scope:
                scope[name].used = True
                return scope[name].value
        text = self._environ.get(name)
        if text is None:
            self._fail_plain(
                f"variable reference for '{name}' on line {self._line} can not be found"
            )
        inner = _Reader(f"value: {text}", self._folder, {}, depth=self._depth + 1)
        return inner.document()["value"].value

    def _include(self, into: Map) -> None:
        if self._depth >= INCLUDE_DEPTH_MAX:
            self._fail("includes are nested too deeply")
        name = self._value()
        if not isinstance(name, str):
            self._fail("include wants a file name")
        path = self._folder / name
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            self._fail_plain(f"error parsing include file '{name}', {error}")
        inner = _Reader(text, path.parent, self._environ, depth=self._depth + 1)
        inner._scopes = self._scopes  # an included file sees our variables
        self.included.append(str(path))
        inner.included = self.included
        inner.document(into)

    # -- characters -------------------------------------------------------------------------

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> None:
        if self._peek() == "\n":
            self._line += 1
            self._line_start = self._at + 1
        self._at += 1

    def _skip_blanks(self) -> None:
        while (character := self._peek()) and character in BLANKS:
            self._next()

    def _skip(self, *, newlines: bool = False, separators: bool = False) -> None:
        """Skip blanks, comments and the given extra characters."""
        while character := self._peek():
            if character == "#" or self._text.startswith("//", self._at):
                while self._peek() not in ("\n", ""):
                    self._next()
            elif (
                character in BLANKS
                or (newlines and character == "\n")
                or (separators and character in ",;")
            ):
                self._next()
            else:
                return

    def _fail(self, detail: str) -> NoReturn:
        raise ParseError(f"Parse error on line {self._line}: '{detail}'")

    def _fail_plain(self, text: str) -> NoReturn:
        raise ParseError(text)
