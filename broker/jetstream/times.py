"""Times and durations as the JetStream API prints them.

Owns: nanoseconds since 1970 <-> RFC 3339 text with up to nine fractional digits, Go durations.
May not touch: clocks; every time is an argument.
Spec: JetStream sheet 0, times: UTC `Z`, trailing zeros trimmed, zero time is year 1."""

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


def rfc3339(ns: int) -> str:
    """Text of a wall time. 0 is "never" and prints as the zero time, not as 1970."""
    if ns == 0:
        return ZERO_TIME_TEXT
    seconds, fraction = divmod(ns, NS_PER_S)
    text = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    if fraction:
        text += f".{fraction:09d}".rstrip("0")
    return text + "Z"


def parse_rfc3339(text: str) -> int:
    """Wall time of a text; ValueError if it is none.

    The zero time gives 0. Times an int64 of nanoseconds cannot hold (before 1677, after 2262)
    are moved to the nearest one it can: only their order against stored messages matters.
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
    """A duration as Go prints it: `1m30s`, `250ms`, `1h0m0s`, `0s`."""
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


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    if not rest:
        return str(whole)
    digits = len(str(unit)) - 1
    return f"{whole}." + f"{rest:0{digits}d}".rstrip("0")


def _zone(offset: str) -> timezone:
    delta = timedelta(hours=int(offset[1:3]), minutes=int(offset[4:6]))
    return timezone(-delta if offset[0] == "-" else delta)
