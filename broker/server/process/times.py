"""Text forms of times and durations in documents, events and traces.

Owns: the formats that nats-server uses.
May not touch: clocks; every time is an argument.
Spec: NATS monitoring endpoints: times are RFC 3339 in UTC, durations look like 1d2h3m4s."""

from __future__ import annotations

from datetime import UTC, datetime


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
