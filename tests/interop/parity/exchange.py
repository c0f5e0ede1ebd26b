"""What a scene is made of: requests, subscriptions, monitoring documents.

Owns: the steps, as plain values. May not touch: servers, comparison."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class Request:
    """A message with a reply subject. `must`: set-up that has to succeed on both sides.

    `replies` 0: neither server answers."""

    subject: str
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    replies: int = 1
    must: bool = False

    def __str__(self) -> str:
        shown = f"{self.subject} {self.body[:160].decode(errors='replace')}"
        return f"{shown} {self.headers or ''}".strip()


@dataclass(frozen=True, slots=True)
class Publish:
    """A message without a reply subject; it is not an exchange of its own."""

    subject: str
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Listen:
    """From now on, collect the messages of this subject."""

    subject: str
    queue: str = ""


@dataclass(frozen=True, slots=True)
class Unlisten:
    """Give up all subscriptions of the scene."""


@dataclass(frozen=True, slots=True)
class Heard:
    """The next `count` messages of all `Listen`s together; unordered ones are sorted by subject."""

    count: int
    ordered: bool = True

    def __str__(self) -> str:
        return f"heard {self.count}"


@dataclass(frozen=True, slots=True)
class Ack:
    """Answer the delivery heard or fetched last, number `which` from its end."""

    body: bytes = b"+ACK"
    which: int = 1

    def __str__(self) -> str:
        return f"ack {self.body.decode()}"


@dataclass(frozen=True, slots=True)
class Get:
    """A document of the monitoring port."""

    path: str

    def __str__(self) -> str:
        return f"GET {self.path}"


Step = Request | Publish | Listen | Unlisten | Heard | Ack | Get
EXCHANGES = (Request, Heard, Ack, Get)


@dataclass(frozen=True, slots=True)
class Scene:
    name: str
    steps: tuple[Step, ...]
    user: str = ""  # "" is a fresh account

    @property
    def exchanges(self) -> int:
        return sum(isinstance(step, EXCHANGES) for step in self.steps)


def api(subject: str, body: object = b"", *, must: bool = False, **headers: str) -> Request:
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(f"$JS.API.{subject}", payload, named, must=must)


def unanswered(one: Request) -> Request:
    return Request(one.subject, one.body, one.headers, replies=0)


def publish(subject: str, body: bytes = b"1", **headers: str) -> Request:
    """A publish that a stream acknowledges; `Nats_Msg_Id="a"` is a header."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(subject, body, named)


def stored(subject: str, body: bytes = b"1", **headers: str) -> Request:
    """The same, as part of the set-up."""
    one = publish(subject, body, **headers)
    return Request(one.subject, one.body, one.headers, must=True)


def scene(name: str, *parts: Step | Iterable[Step], user: str = "") -> Scene:
    steps: list[Step] = []
    for part in parts:
        if isinstance(part, Step):
            steps.append(part)
        else:
            steps.extend(part)
    return Scene(name, tuple(steps), user)
