"""The trace of one message: what its headers ask for, and its events.

Owns: the tracing headers, the form of the report, and when it is complete.
May not touch: deliveries (tracing.py), permissions.
Spec: NATS ADR-41, message tracing; details as in nats-server 2.15."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import randrange
from typing import Any, Final

from broker.accounts import Account
from broker.server.process.times import timestamp
from broker.wire import headers as wire_headers

DEST: Final = b"Nats-Trace-Dest"
DEST_NAME: Final = DEST.lower()
TRACEPARENT_NAME: Final = b"traceparent"
DISABLED: Final = b"trace disabled"  # not a valid subject, so never a destination
HOP: Final = b"Nats-Trace-Hop"
_FIRST_LINE: Final = b"NATS/1.0\r\n"
_PARENT_FIELDS: Final = 4

CLIENT_KIND: Final = 0
ROUTE_KIND: Final = 1

NO_ECHO = "Not delivered because of no echo"
DENIED = "Not delivered because subscription denies this subject"
SUBSCRIPTION_CLOSED = "Not delivered because subscription is closed"
CLIENT_CLOSED = "Not delivered because client is closed"
NOT_TRACED_THERE = (
    "Message delivered but remote does not support message tracing so no trace event generated "
    "from there"
)
NOT_SENT_THERE = "Not delivered because remote does not support message tracing"


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """The trace that a header block asks for. `only` without `dest`: the message is neither traced
    nor delivered."""

    dest: bytes = b""  # empty: no trace
    only: bool = False  # the message itself is not delivered
    disable: bool = False  # no other server may trace it
    lines: dict[str, list[str]] = field(default_factory=dict)


def requested(headers: bytes, account: Account, *, first_server: bool) -> TraceRequest:
    """Reads the trace headers. Their names are case-sensitive, except `traceparent`, which counts
    only in an account with a configured trace destination."""
    lines, found = _lines(headers)
    if found is None:
        return TraceRequest()
    values = lines.get(DEST.decode())
    if values is None:
        return _external(lines, account, first_server=first_server)
    only = lines.get("Nats-Trace-Only", [""])[0].lower() in ("1", "true", "on")
    if "Nats-Trace-Origin-Account" in lines:  # sent by old servers
        return TraceRequest(only=only, disable=True)
    return TraceRequest(values[0].encode(), only, lines=lines)


def _external(lines: dict[str, list[str]], account: Account, *, first_server: bool) -> TraceRequest:
    options = account.options
    if not options.trace_dest:
        return TraceRequest()
    if first_server and randrange(100) >= options.trace_sampling:
        return TraceRequest(disable=True)
    return TraceRequest(options.trace_dest, lines=lines)


def _lines(headers: bytes) -> tuple[dict[str, list[str]], bool | None]:
    """All lines with a value, and whether one of them asks for a trace (None: no)."""
    lines: dict[str, list[str]] = {}
    asked: bool | None = None
    if not headers.startswith(_FIRST_LINE):
        return lines, None
    for name, raw in wire_headers.parse(headers):
        value = raw.strip(b" \t")
        if not name or not value:
            continue
        if name == DEST:
            if value == DISABLED:
                return lines, None
            asked = True
        elif name.lower() == TRACEPARENT_NAME and _sampled(value):
            asked = True
        lines.setdefault(text(name), []).append(text(value))
    return lines, asked


def _sampled(parent: bytes) -> bool:
    """The last of the four fields is two hexadecimal digits; its lowest bit asks for a trace."""
    fields = parent.split(b"-")
    if len(fields) != _PARENT_FIELDS or len(fields[-1]) != 2:
        return False
    try:
        return bool(int(fields[-1], 16) & 1)
    except ValueError:
        return False


def disabled(headers: bytes) -> bytes:
    """The header block with tracing disabled, for a server that must not trace the message."""
    return with_header(headers, DEST, DISABLED)


def with_header(headers: bytes, name: bytes, value: bytes) -> bytes:
    return wire_headers.add(wire_headers.without(headers, name + b":"), [(name, value)])


def disabled_in_place(headers: bytes) -> bytes:
    """Like `disabled`, for a stored message: the order of the other headers is kept."""
    before, name, rest = headers.partition(b"\r\n%b:" % DEST)
    if not name:
        return disabled(headers)
    return b"%b%b %b\r\n%b" % (before, name, DISABLED, rest.partition(b"\r\n")[2])


@dataclass(slots=True, eq=False)
class Trace:
    """Collects events until the fan-out is complete and every stream has answered."""

    account: Account
    dest: bytes
    only: bool
    request: dict[str, Any]
    send: Callable[[Trace], None]
    hop: str = ""
    hops: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    waits: int = 1  # pending: the end of the fan-out, and one for each stream still to answer

    def add(self, event_type: str, /, **fields: object) -> dict[str, Any]:
        """Append an event. Empty fields are left out; zero is not empty."""
        event: dict[str, Any] = {"type": event_type, "ts": timestamp(time.time())}
        event.update((name, value) for name, value in fields.items() if value not in ("", None))
        self.events.append(event)
        return event

    def egress(self, cid: int, name: str, *, kind: int = CLIENT_KIND, hop: str = "",
               account: str = "", sub: bytes = b"", queue: bytes = b"",
               error: str = "") -> None:  # fmt: skip
        here = "" if account == self.account.name else account
        self.add("eg", kind=kind, cid=cid, name=name, hop=hop, acc=here,
                 sub=text(sub), queue=text(queue), error=error)  # fmt: skip

    def next_hop(self) -> str:
        self.hops += 1
        return f"{self.hop}.{self.hops}" if self.hop else str(self.hops)

    def done(self) -> None:
        """One pending item is done; after the last one, the report is sent."""
        self.waits -= 1
        if not self.waits:
            self.send(self)

    def document(self, server: dict[str, Any]) -> dict[str, Any]:
        body: dict[str, Any] = {"server": server, "request": self.request}
        if self.hops:
            body["hops"] = self.hops
        body["events"] = self.events
        return body


def request_of(asked: TraceRequest, size: int) -> dict[str, Any]:
    header = {name: asked.lines[name] for name in sorted(asked.lines)}
    return {"header": header, "msgsize": size}


def text(raw: bytes) -> str:
    """Bytes of a client as text for JSON."""
    return raw.decode(errors="replace")
