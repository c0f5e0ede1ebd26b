"""Messages as text and as JSON.

Owns: both forms. Whoever published a message must not control the terminal that shows it.
May not touch: servers."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from broker.server.process.printable import printable, printable_lines

Headers = Sequence[tuple[str, str]]


def message_text(label: object, subject: str, data: bytes, headers: Headers = ()) -> str:
    """`[label] subject: data`, and the headers in lines of their own."""
    lines = [f"[{label}] {printable(subject)}: {payload_text(data)}"]
    lines += [f"    {printable(name)}: {printable(value)}" for name, value in headers]
    return "\n".join(lines)


def payload_text(data: bytes) -> str:
    return printable_lines(data.decode(errors="replace"))


def payload_fields(data: bytes) -> dict[str, str]:
    """As text if it is text, in base64 otherwise."""
    try:
        return {"data": data.decode()}
    except UnicodeDecodeError:
        return {"data_base64": base64.b64encode(data).decode()}


def message_fields(subject: str, data: bytes, headers: Headers = (), **more: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {**more, "subject": subject}
    if headers:
        named: dict[str, list[str]] = {}
        for name, value in headers:
            named.setdefault(name, []).append(value)
        fields["headers"] = named
    return fields | payload_fields(data)
