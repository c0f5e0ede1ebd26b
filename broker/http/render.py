"""How the monitor writes things: times, spans, and query values.

Owns: the text forms nats-server uses in its documents.
May not touch: what is shown.
Spec: core contract 7; times are RFC 3339 in UTC, spans look like 1d2h3m4s."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime


class BadQuery(Exception):
    """A query value that cannot be read; str() is the answer's text (400)."""


def timestamp(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f") + "000Z"


def span(seconds: float) -> str:
    """Whole seconds, as uptime and idle are shown."""
    left = max(0, int(seconds))
    text = ""
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if left >= length or text:
            text += f"{left // length}{unit}"
            left %= length
    return f"{text}{left}s"


def short_span(seconds: float) -> str:
    """A round trip, with the unit that fits."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f}µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3f}ms"
    return f"{seconds:.3f}s"


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
