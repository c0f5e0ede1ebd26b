"""Durations like `1h30m` and sizes like `10GiB`, as options and as text.

Owns: the units, both directions.
May not touch: servers; it gets values and returns values.
Spec: a duration without a unit is seconds. KiB, MiB, GiB and K, M, G are powers of 1024; KB, MB and
GB are powers of 1000."""

from __future__ import annotations

import re
from typing import Any

import click

NS = 1_000_000_000
_DURATIONS = {
    "ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": NS, "m": 60 * NS, "h": 3600 * NS,
    "d": 86_400 * NS, "w": 7 * 86_400 * NS, "y": 365 * 86_400 * NS,
}  # fmt: skip
_PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h|d|w|y)")
_NUMBER = re.compile(r"\d+(\.\d+)?")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b)?", re.IGNORECASE)
_LETTERS = ("", "k", "m", "g", "t")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
LARGEST_NS = 2**63 - 1


class DurationType(click.ParamType[int]):
    """An option that is a duration; the command gets nanoseconds."""

    name = "duration"

    def __init__(self, *, zero: bool = False) -> None:
        self._zero = zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = duration_ns(str(value))
        if found is None or found > LARGEST_NS:
            self.fail(f'"{value}" is not a duration: write 90s, 1h30m or 7d', param, ctx)
        if found == 0 and not self._zero:
            self.fail(f'"{value}" is no time at all', param, ctx)
        return found


class SizeType(click.ParamType[int]):
    """An option that is a number of bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = size_bytes(str(value))
        if found is None or found > LARGEST_NS or found == 0:
            self.fail(f'"{value}" is not a size: write 512, 64KiB or 10GiB', param, ctx)
        return found


DURATION = DurationType()
DURATION_OR_ZERO = DurationType(zero=True)
SIZE = SizeType()


def duration_ns(text: str) -> int | None:
    """Nanoseconds; None if it is not a duration."""
    if _NUMBER.fullmatch(text):
        return round(float(text) * NS)
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(round(float(number) * _DURATIONS[unit]) for number, unit in parts)


def size_bytes(text: str) -> int | None:
    """None if it is not a size."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        return None
    number, letter, ending = found.groups()
    decimal = bool(letter) and (ending or "").lower() == "b"
    factor: int = (1000 if decimal else 1024) ** _LETTERS.index(letter.lower())
    return round(float(number) * factor)


def counted(count: int, what: str) -> str:
    """`1 stream`, `2,000 streams`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def size(count: int) -> str:
    """`512 B`, `1.5 KiB`."""
    amount, unit = float(count), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount /= 1024
        unit += 1
    return f"{count} B" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"


def age(seconds: float) -> str:
    """`3d4h`, `2m10s`, `1.50s`: the two largest units."""
    if seconds < 60:
        return f"{max(seconds, 0.0):.2f}s"
    whole = int(seconds)
    parts = [(whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "m"),
             (whole % 60, "s")]  # fmt: skip
    while not parts[0][0]:
        parts.pop(0)
    return "".join(f"{number}{unit}" for number, unit in parts[:2])


def duration(ns: int) -> str:
    """A configured duration, exactly: `1h30m`, `250ms`."""
    if ns <= 0:
        return "0s"
    text = ""
    for unit in ("y", "d", "h", "m", "s", "ms", "us", "ns"):
        count, ns = divmod(ns, _DURATIONS[unit])
        text += f"{count}{unit}" if count else ""
    return text


def latency(seconds: float) -> str:
    """Of a measurement: `850 us`, `1.25 ms`, `2.10 s`."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"
