"""Values of a monitor's query string.

Owns: how integers and booleans are read, and the error for anything else.
May not touch: which values a document knows.
Spec: NATS monitoring endpoints."""

from __future__ import annotations

from collections.abc import Mapping


class BadQuery(Exception):
    """A query value that cannot be read; str() is the answer's text (400)."""


def integer(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name)
    if not text:
        return default
    try:
        return int(text)
    except ValueError as error:
        raise BadQuery(f"Error decoding int for '{name}': {error}") from error


def boolean(query: Mapping[str, str], name: str) -> bool:
    text = query.get(name)
    if not text:
        return False
    if text.lower() in ("1", "t", "true"):
        return True
    if text.lower() in ("0", "f", "false"):
        return False
    raise BadQuery(f"Error decoding boolean for '{name}': invalid syntax")
