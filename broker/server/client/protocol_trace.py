"""Protocol tracing (-V): what a client sent and what was sent to it, as nats-server logs it.

Owns: the text of trace lines.
May not touch: the connection.
Spec: nats-server, trace log: `<<- [SUB foo 1]`, `<<- MSG_PAYLOAD: ["hello"]`, secrets redacted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.server.client.connect_options import redacted
from broker.wire import Op

if TYPE_CHECKING:
    from broker.wire import PubRun


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")


def inbound(event: tuple[Any, ...], *, payload_max: int, headers_only: bool = False) -> list[str]:
    """The lines of one parsed operation."""
    op = event[0]
    if op is Op.PUB:
        return _published(event[1], payload_max=payload_max, headers_only=headers_only)
    if op is Op.SUB:
        _, subject, queue, sid = event
        parts = [subject, queue, sid] if queue else [subject, sid]
        return [f"<<- [SUB {_text(b' '.join(parts))}]"]
    if op is Op.UNSUB:
        _, sid, limit = event
        return [f"<<- [UNSUB {_text(sid)}{f' {limit}' if limit else ''}]"]
    if op is Op.CONNECT:
        return [f"<<- [CONNECT {redacted(event[1])}]"]
    return [f"<<- [{op.name}]"]


def _published(run: PubRun, *, payload_max: int, headers_only: bool) -> list[str]:
    lines: list[str] = []
    for row in range(len(run)):
        subject, reply, headers, payload = run.message(row)
        parts = [subject, reply] if reply else [subject]
        line = _text(b" ".join(parts))
        if headers:
            lines.append(f"<<- [HPUB {line} {len(headers)} {len(headers) + len(payload)}]")
        else:
            lines.append(f"<<- [PUB {line} {len(payload)}]")
        if headers_only:
            lines.append(f"<<- MSG_HEADERS: [{_payload(headers, payload_max)}]")
        else:
            lines.append(f"<<- MSG_PAYLOAD: [{_payload(payload, payload_max)}]")
    return lines


def _payload(payload: bytes, limit: int) -> str:
    if limit and len(payload) > limit:
        return f'"{_text(payload[:limit])}..."'
    return f'"{_text(payload)}"'


def outbound(data: bytes) -> str:
    """The first line of what is sent."""
    return f"->> [{_text(data.partition(bytes((13, 10)))[0])}]"
