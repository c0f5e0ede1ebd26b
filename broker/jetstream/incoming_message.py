"""A message to be stored: the headers that JetStream understands, and its TTL.

Owns: the "Nats-" headers of one message, by name, their rewriting, and the syntax of Nats-TTL.
May not touch: the effect of a header (broker/jetstream/publish, broker/jetstream/schedules).
Spec: NATS JetStream, headers understood on publish; NATS ADR-43 (per-message TTL)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from broker.jetstream.times import NS_MAX, NS_PER_S, parse_go_duration
from broker.store import deadlines
from broker.wire import headers as wire_headers

TTL_HEADER: Final = b"Nats-TTL"
TTL_NEVER: Final = -1
_EOL: Final = b"\r\n"
_NATS_LINE: Final = re.compile(rb"\r\n(Nats-[^:\r\n]*): *([^\r\n]*)")
_PLAIN_START: Final = wire_headers.VERSION + _EOL
_REQUEST_INFO: Final = b"Nats-Request-Info"
# Headers that are invalid, not absent, if they have no value.
_VALUED: Final = (b"Nats-Batch-Commit", b"Nats-Schedule-Time-Zone")
_TTL_DIGITS_MAX: Final = 10  # more seconds than this overflow an int64 of nanoseconds


@dataclass(slots=True)
class IncomingMessage:
    subject: bytes
    headers: bytes
    data: bytes
    time_ns: int
    named: dict[bytes, bytes] = field(default_factory=dict)  # first value of each "Nats-" header
    rules: int = 0  # by which it is checked (commands/publish_entry.py)

    @classmethod
    def of(
        cls, subject: bytes, headers: bytes, data: bytes, time_ns: int, rules: int = 0
    ) -> IncomingMessage:
        """The message as it is stored: without a status line and without the Nats-Request-Info
        header that a service import adds."""
        if headers and not headers.startswith(_PLAIN_START):
            lines = wire_headers.parse(headers)
            headers = wire_headers.build(b"", lines) if lines else b""
        if b"\nNats-" not in headers:
            return cls(subject, headers, data, time_ns, {}, rules)
        named = _named(headers)
        if _REQUEST_INFO in named:
            headers = wire_headers.without(headers, _REQUEST_INFO + b":")
            del named[_REQUEST_INFO]
        if rules and b"" in named.values():
            named = {name: value for name, value in named.items() if value or name in _VALUED}
        return cls(subject, headers, data, time_ns, named, rules)

    @property
    def msg_id(self) -> bytes:
        return self.named.get(b"Nats-Msg-Id", b"")

    @property
    def size(self) -> int:
        return len(self.headers) + len(self.data)

    def set_header(self, name: bytes, value: bytes) -> None:
        """Replace the header, or add it; it becomes the last line."""
        if name in self.named:
            self.headers = wire_headers.without(self.headers, name + b":")
        self.headers = wire_headers.add(self.headers, [(name, value)])
        self.named[name] = value

    def drop_header(self, name: bytes) -> None:
        if self.named.pop(name, None) is not None:
            self.headers = wire_headers.without(self.headers, name + b":")


def _named(raw: bytes) -> dict[bytes, bytes]:
    ends = raw.count(_EOL)
    if raw.count(b"\r") == ends == raw.count(b"\n"):
        # The usual case. Fast even with thousands of headers: every replica parses them.
        return dict(reversed(_NATS_LINE.findall(raw)))  # the first value of a name is set last
    found: dict[bytes, bytes] = {}
    for name, value in wire_headers.parse(raw):
        if name.startswith(b"Nats-"):
            found.setdefault(name, value)
    return found


# -- TTL -------------------------------------------------------------------------------------------


def parse_ttl(value: bytes) -> int | None:
    """The value of a Nats-TTL header in whole seconds, TTL_NEVER, or None if it is invalid.

    Valid are a number of seconds, a Go duration of at least one second, and "never"."""
    if value.lower() == b"never":
        return TTL_NEVER
    if value.isdigit():
        seconds = int(value) if len(value) <= _TTL_DIGITS_MAX else 0
    else:
        duration = parse_go_duration(value.decode(errors="replace"))
        if duration is None or duration < NS_PER_S:
            return None
        seconds = duration // NS_PER_S
    return seconds if 1 <= seconds <= NS_MAX // NS_PER_S else None


def expires_at(time_ns: int, ttl: int) -> int:
    """When a message stored at `time_ns` expires; deadlines.NEVER if it does not."""
    return deadlines.NEVER if ttl == TTL_NEVER else min(time_ns + ttl * NS_PER_S, deadlines.NEVER)
