"""One published message on its way into a stream, with the headers that mean something.

Owns: the headers a stream looks at, by name, and their rewriting.
May not touch: what they lead to.
Spec: JetStream sheet 3.1 (status stripped), 3.2 (headers understood on publish)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from broker.wire import headers as wire_headers

_PLAIN_START: Final = wire_headers.VERSION + b"\r\n"
_REQUEST_INFO: Final = b"Nats-Request-Info"


@dataclass(slots=True)
class IncomingMessage:
    subject: bytes
    headers: bytes
    data: bytes
    time_ns: int
    named: dict[bytes, bytes] = field(default_factory=dict)  # first value of each "Nats-" header

    @classmethod
    def of(cls, subject: bytes, headers: bytes, data: bytes, time_ns: int) -> IncomingMessage:
        """As it is stored: without a status and without what an import added."""
        if headers and not headers.startswith(_PLAIN_START):
            lines = wire_headers.parse(headers)
            headers = wire_headers.build(b"", lines) if lines else b""
        if b"\nNats-" not in headers:
            return cls(subject, headers, data, time_ns, {})
        named = _named(headers)
        if _REQUEST_INFO in named:
            headers = wire_headers.without(headers, _REQUEST_INFO + b":")
            del named[_REQUEST_INFO]
        return cls(subject, headers, data, time_ns, named)

    @property
    def msg_id(self) -> bytes:
        return self.named.get(b"Nats-Msg-Id", b"")

    @property
    def size(self) -> int:
        return len(self.headers) + len(self.data)

    def set_header(self, name: bytes, value: bytes) -> None:
        """In place of what it had, as the last line."""
        if name in self.named:
            self.headers = wire_headers.without(self.headers, name + b":")
        self.headers = wire_headers.add(self.headers, [(name, value)])
        self.named[name] = value

    def drop_header(self, name: bytes) -> None:
        if self.named.pop(name, None) is not None:
            self.headers = wire_headers.without(self.headers, name + b":")


def _named(raw: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for name, value in wire_headers.parse(raw):
        if name.startswith(b"Nats-"):
            found.setdefault(name, value)
    return found
