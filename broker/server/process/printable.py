"""Escapes untrusted text for logs and terminals.

Owns: which characters are escaped, and how.
May not touch: where the text goes.
A user name, a subject or a payload may hold escape codes that move the cursor, retitle the window
or hide what follows, and characters that reverse the order of what is read. Every control
character is therefore shown as an escape; in a quoted text, quotes and backslashes are as well, so
that a name cannot end its own quotes."""

from __future__ import annotations

from typing import Final

_CONTROLS: Final = [*range(0x20), *range(0x7F, 0xA0)]
# Line and paragraph separators, and the marks that change the direction of text.
_INVISIBLE: Final = [
    0x200B, 0x200E, 0x200F, 0x2028, 0x2029, 0xFEFF, *range(0x202A, 0x202F), *range(0x2066, 0x206A),
]  # fmt: skip
_SHORT: Final = {0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r"}
_ESCAPES: Final = (
    {code: f"\\x{code:02x}" for code in _CONTROLS}
    | {code: f"\\u{code:04x}" for code in _INVISIBLE}
    | _SHORT
)
_QUOTED: Final = _ESCAPES | {ord('"'): '\\"', ord("\\"): "\\\\"}
_LINES: Final = {code: text for code, text in _ESCAPES.items() if code not in (0x09, 0x0A)}


def printable(text: str) -> str:
    """One line: nothing in it acts on a terminal or begins another line."""
    return text if text.isprintable() else text.translate(_ESCAPES)


def printable_lines(text: str) -> str:
    """The same, but line ends and tabs stay."""
    return text if text.isprintable() else text.translate(_LINES)


def quoted(text: str) -> str:
    """In double quotes that the text cannot end."""
    return f'"{text.translate(_QUOTED)}"'
