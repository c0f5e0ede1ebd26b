"""What commands use of a connection.

Owns: the shape.
May not touch: sockets; blocking.py has the client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from broker.cli.connect.options import Destination

Headers = Sequence[tuple[str, str]]


@dataclass(slots=True)
class ReceivedMessage:
    """One message."""

    subject: str
    sid: int
    reply: str
    head: bytes  # the block of headers, or nothing
    data: bytes

    @property
    def status(self) -> int:
        """Of a message that a server sends about itself: 503 no responders, 404, 408, 100."""
        text = self.head[8:13].strip()
        return int(text[:3]) if text[:3].isdigit() else 0

    @property
    def description(self) -> str:
        line = self.head.partition(b"\r\n")[0]
        return line[12:].strip().decode(errors="replace")

    @property
    def headers(self) -> list[tuple[str, str]]:
        lines = self.head.decode(errors="replace").split("\r\n")[1:]
        pairs = (line.partition(":") for line in lines if ":" in line)
        return [(name, value.strip()) for name, _, value in pairs]

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key.lower() == name.lower()), "")


class CommandClient(Protocol):
    """A connection that is logged in."""

    to: Destination
    info: dict[str, Any]  # what the server said about itself
    url: str

    def publish(
        self, subject: str, data: bytes = b"", *, reply: str = "", headers: Headers = ()
    ) -> None: ...
    def send(self) -> None: ...
    def subscribe(self, subject: str, queue: str = "", *, most: int = 0) -> int: ...
    def unsubscribe(self, sid: int) -> None: ...
    def next(self, timeout_s: float | None = None) -> ReceivedMessage | None: ...
    def messages(self, timeout_s: float | None = None) -> Iterator[ReceivedMessage]: ...
    def request(
        self,
        subject: str,
        data: bytes = b"",
        *,
        headers: Headers = (),
        timeout_s: float | None = None,
    ) -> ReceivedMessage: ...
    def new_reply(self) -> str: ...
    def answer(self, reply: str, timeout_s: float) -> ReceivedMessage | None: ...
    def flush(self) -> float: ...
