"""Times and durations as texts of the JetStream API.

Owns: nanoseconds since 1970 <-> RFC 3339 text with up to nine fractional digits, Go durations.
May not touch: clocks; every time is an argument.
Spec: Go's time.Time in JSON: UTC as `Z`, trailing zeros trimmed, the zero time is year 1."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

ZERO_TIME_TEXT: Final = "0001-01-01T00:00:00Z"
NS_PER_S: Final = 1_000_000_000
NS_PER_MS: Final = 1_000_000
NS_MIN: Final = -(2**63)
NS_MAX: Final = 2**63 - 1

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_RFC3339: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:[.,](\d+))?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_UNIT_NS: Final = {
    "ns": 1,
    "us": 1_000,
    "\u00b5s": 1_000,  # micro sign
    "\u03bcs": 1_000,  # Greek letter mu
    "ms": NS_PER_MS,
    "s": NS_PER_S,
    "m": 60 * NS_PER_S,
    "h": 3_600 * NS_PER_S,
}
_PART: Final = re.compile(r"(\d*)(?:\.(\d*))?(ns|us|\u00b5s|\u03bcs|ms|s|m|h)", re.ASCII)
_DIGITS_MAX: Final = 19  # of an int64; int() raises for thousands of digits


def rfc3339(ns: int) -> str:
    """Text of a wall time. 0 means "never" and gives the zero time, not 1970."""
    if ns == 0:
        return ZERO_TIME_TEXT
    seconds, fraction = divmod(ns, NS_PER_S)
    text = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    if fraction:
        text += f".{fraction:09d}".rstrip("0")
    return text + "Z"


def parse_rfc3339(text: str) -> int:
    """Wall time of a text; ValueError if it is invalid.

    The zero time gives 0. Times outside the range of int64 nanoseconds (before 1677, after 2262)
    are clamped to it: only their order relative to stored messages matters.
    """
    found = _RFC3339.fullmatch(text)
    if found is None:
        raise ValueError(f"not an RFC 3339 time: {text!r}")
    year, month, day, hour, minute, second = (int(found[i]) for i in range(1, 7))
    zone = UTC if found[8] in "Zz" else _zone(found[8])
    fraction = int((found[7] or "0")[:9].ljust(9, "0"))
    moment = datetime(year, month, day, hour, minute, second, tzinfo=zone)
    since = moment - _EPOCH
    ns = (since.days * 86_400 + since.seconds) * NS_PER_S + fraction
    if moment == datetime(1, 1, 1, tzinfo=UTC) and not fraction:
        return 0
    return min(max(ns, NS_MIN), NS_MAX)


def go_duration(ns: int) -> str:
    """A duration in Go's format: `1m30s`, `250ms`, `1h0m0s`, `0s`."""
    if ns == 0:
        return "0s"
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    if ns < NS_PER_S:
        for unit, size in (("ms", NS_PER_MS), ("µs", 1_000)):
            if ns >= size:
                return sign + _decimal(ns, size) + unit
        return f"{sign}{ns}ns"
    minutes, rest = divmod(ns, 60 * NS_PER_S)
    hours, minutes = divmod(minutes, 60)
    text = _decimal(rest, NS_PER_S) + "s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    if hours:
        text = f"{hours}h{text}"
    return sign + text


def parse_go_duration(text: str) -> int | None:
    """Nanoseconds of a Go duration text (`1h15m`, `-1.5s`, `0`); None if it is invalid or exceeds
    an int64. Fractions of a nanosecond are cut off."""
    body = text[1:] if text[:1] in ("+", "-") else text
    if body == "0":
        return 0
    total = at = 0
    while at < len(body):
        part = _PART.match(body, at)
        if part is None or not (part[1] or part[2]):
            return None
        whole, fraction, unit = part[1].lstrip("0"), (part[2] or "")[:_DIGITS_MAX], part[3]
        if len(whole) > _DIGITS_MAX:
            return None
        total += int(whole or "0") * _UNIT_NS[unit]
        total += int(fraction or "0") * _UNIT_NS[unit] // 10 ** len(fraction)
        at = part.end()
    if not body or total > NS_MAX:
        return None
    return -total if text[0] == "-" else total


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    if not rest:
        return str(whole)
    digits = len(str(unit)) - 1
    return f"{whole}." + f"{rest:0{digits}d}".rstrip("0")


def _zone(offset: str) -> timezone:
    delta = timedelta(hours=int(offset[1:3]), minutes=int(offset[4:6]))
    return timezone(-delta if offset[0] == "-" else delta)
