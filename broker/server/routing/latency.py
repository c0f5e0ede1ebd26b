"""Latency of exported services: which requests are measured, and the report about one.

Owns: the sampling by percent or by tracing headers, and the fields of a report.
May not touch: messages, clocks (times are arguments).
Spec: NATS service latency tracking (io.nats.server.metric.v1.service_latency). The tracing headers
are those of Jaeger, Zipkin (b3) and W3C."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from broker.config.options import ALWAYS, ServiceLatency
from broker.server.process.times import timestamp
from broker.wire import headers as wire_headers

TYPE: Final = "io.nats.server.metric.v1.service_latency"
OK, UNAVAILABLE, TIMEOUT = 200, 503, 504
_TEXTS: Final = {UNAVAILABLE: "Service Unavailable", TIMEOUT: "Service Timeout"}
_ON: Final = "1"
Headers = dict[str, list[str]]


@dataclass(slots=True)
class Measured:
    """A request whose latency is reported when it is answered."""

    requestor: dict[str, Any]
    started: float  # seconds since 1970
    begun_ns: int  # of the monotonic clock
    headers: Headers = field(default_factory=dict)


def asked(latency: ServiceLatency, raw: bytes, draw: Callable[[int], int]) -> Headers | None:
    """Whether to measure this request. None: no. Otherwise the headers to repeat in the report."""
    if latency.sampling:
        return {} if latency.sampling >= ALWAYS or draw(ALWAYS) < latency.sampling else None
    found: Headers = {}
    for name, value in wire_headers.parse(raw) if raw else ():
        canonical = "-".join(part.capitalize() for part in name.decode("latin-1").split("-"))
        found.setdefault(canonical, []).append(value.decode(errors="replace"))
    return _traced(found)


def _traced(found: Headers) -> Headers | None:
    if "Uber-Trace-Id" in found:
        flags = found["Uber-Trace-Id"][0].split(":")[3:]
        return _only(found, ("Uber-Trace-Id", "Uberctx-")) if _odd(flags) else None
    if "X-B3-Sampled" in found or "X-B3-Traceid" in found:
        on = found.get("X-B3-Sampled", [_ON])[0] == _ON
        return _only(found, ("X-B3-",)) if on else None
    if "B3" in found:
        words = found["B3"][0].split("-")
        off = words[2:3] == ["0"] or words == ["0"]
        return None if off else _only(found, ("B3",))
    if "Traceparent" in found:
        words = found["Traceparent"][0].split("-")
        on = len(words) == 4 and _odd(words[3:])
        return _only(found, ("Traceparent", "Tracestate")) if on else None
    return None


def _odd(words: list[str]) -> bool:
    """Whether the lowest bit of a number in hexadecimal digits is set."""
    try:
        return len(words) == 1 and int(words[0], 16) % 2 == 1
    except ValueError:
        return False


def _only(found: Headers, prefixes: tuple[str, ...]) -> Headers:
    return {name: values for name, values in found.items() if name.startswith(prefixes)}


def report(
    request: Measured,
    *,
    now: float,
    responder: dict[str, Any] | None,
    answered_ns: int = 0,
    sent_ns: int = 0,
    status: int = OK,
) -> dict[str, Any]:
    """`answered_ns` and `sent_ns`: when the answer arrived, and when it had been forwarded. The
    RTTs of both clients count in the total latency, but not in that of the service."""
    rtt_ns = request.requestor.get("rtt", 0)
    document: dict[str, Any] = {
        "type": TYPE,
        "id": secrets.token_hex(11),
        "timestamp": timestamp(now),
        "status": status,
    }
    if status != OK:
        document["description"] = _TEXTS[status]
    document["requestor"] = request.requestor
    if responder is not None:
        document["responder"] = responder
    if request.headers:
        document["header"] = request.headers
    service_ns = max(answered_ns - request.begun_ns - (responder or {}).get("rtt", 0), 0)
    done = status == OK
    return document | {
        "start": timestamp(request.started - rtt_ns / 1e9),
        "service": service_ns if done else 0,
        "system": max(sent_ns - answered_ns, 0) if done else 0,
        "total": sent_ns - request.begun_ns + rtt_ns if done else 0,
    }
