"""A document as JSON text, encoded in steps.

Owns: the cut of a long document into parts, and their indentation.
May not touch: what the document holds.
One call of the encoder holds the event loop for as long as it takes: 150 ms for the 12 MB that
/jsz shows of ten thousand streams."""

from __future__ import annotations

import msgspec

from broker.server.services import Document
from broker.subjects import Steps

MEMBERS = 16  # members of a list or an object that are encoded in one call
LOOKED_AT = 4  # levels below a value that are searched for a long list


def json_text(document: Document, *, indent: int = 0) -> Steps[bytes]:
    """With an indent, one member per line, as nats-server's monitor shows documents."""
    parts: list[bytes] = []
    yield from _write(document, parts, indent, 0)
    return b"".join(parts)


def _write(value: object, parts: list[bytes], indent: int, depth: int) -> Steps[None]:
    if not _is_long(value, LOOKED_AT):
        parts.append(_short(value, indent, depth))
        return
    before = b"\n" + b" " * (indent * (depth + 1)) if indent else b""
    colon = b": " if indent else b":"
    is_object = isinstance(value, dict)
    items = value.items() if isinstance(value, dict) else ((None, one) for one in value)  # type: ignore[attr-defined]
    parts.append(b"{" if is_object else b"[")
    for position, (name, member) in enumerate(items):
        parts.append(b"," + before if position else before)
        if is_object:
            parts.append(msgspec.json.encode(name) + colon)
        yield from _write(member, parts, indent, depth + 1)
        if position % MEMBERS == MEMBERS - 1:
            yield
    after = b"\n" + b" " * (indent * depth) if indent else b""
    parts.append(after + (b"}" if is_object else b"]"))


def _is_long(value: object, levels: int) -> bool:
    """Whether it has too many members for one call, itself or at one of the levels below."""
    if not isinstance(value, dict | list | tuple):
        return False
    if len(value) > MEMBERS and not isinstance(value, dict):
        return True
    if not levels:
        return False
    members = value.values() if isinstance(value, dict) else value
    return any(_is_long(member, levels - 1) for member in members)


def _short(value: object, indent: int, depth: int) -> bytes:
    text = msgspec.json.encode(value)
    if not indent:
        return text
    shown = msgspec.json.format(text, indent=indent)
    return shown.replace(b"\n", b"\n" + b" " * (indent * depth)) if depth else shown
