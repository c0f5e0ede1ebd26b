"""Times in the answers of servers: RFC 3339 with up to nine digits.

Owns: reading and writing them.
May not touch: servers."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?")


def time_ns(text: str) -> int | None:
    """Nanoseconds since 1970; None for no time, and for Go's year 1. Without a zone it is UTC."""
    found = _RFC3339.fullmatch(text)
    if found is None:
        return None
    day, clock, fraction, zone = found.groups()
    zone = "+00:00" if zone in (None, "Z") else zone
    try:
        whole = datetime.fromisoformat(f"{day}T{clock}{zone}")
    except ValueError:
        return None
    seconds = int(whole.timestamp()) if whole.year > 1 else -1
    return seconds * 1_000_000_000 + int((fraction or "").ljust(9, "0")) if seconds >= 0 else None


def seconds_ago(text: str, now: float) -> float | None:
    then = time_ns(text)
    return None if then is None else now - then / 1e9


def rfc3339(ns: int) -> str:
    seconds, rest = divmod(ns, 1_000_000_000)
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{rest:09}Z"
