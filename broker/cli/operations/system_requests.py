"""Requests of the system account that every server answers.

Owns: collecting the answers.
May not touch: what is printed.
Spec: $SYS.REQ.SERVER.PING.<kind>; an answer has `server`, and `data` or `statsz`."""

from __future__ import annotations

import json
import time
from typing import Any

from broker.cli.connect.client_shape import CommandClient
from broker.cli.connect.failures import CommandFailed, NoAnswerInTime

Document = dict[str, Any]
QUIET_S = 0.4
NEEDS_SYSTEM = "this needs a user of the system account (`jetraft up` prints that of its nodes)"


def every_server(client: CommandClient) -> list[Document]:
    """The statistics of all servers, by name."""
    return asked(client, "STATSZ", expected=0)


def asked(
    client: CommandClient, kind: str, body: Document | None = None, *, expected: int,
    subject: str = "",
) -> list[Document]:  # fmt: skip
    """Answers of so many servers; 0: as many as the first answer knows, or until no more come."""
    reply = client.new_reply()
    data = json.dumps(body).encode() if body else b""
    client.publish(subject or f"$SYS.REQ.SERVER.PING.{kind}", data, reply=reply)
    found: list[Document] = []
    deadline = time.monotonic() + client.to.timeout_s
    while not expected or len(found) < expected:
        left = deadline - time.monotonic()
        answer = client.answer(reply, min(left, QUIET_S) if found and not expected else left)
        if answer is None:
            break
        if answer.status == 503:
            raise CommandFailed(NEEDS_SYSTEM)
        document = json.loads(answer.data)
        if "error" in document:
            raise CommandFailed(str(document["error"].get("description", document["error"])))
        found.append(document)
        expected = expected or int((document.get("statsz") or {}).get("active_servers", 0))
    if not found:
        raise NoAnswerInTime(f"no server answers within {client.to.timeout_s:g} s: {NEEDS_SYSTEM}")
    return sorted(found, key=lambda one: str((one.get("server") or {}).get("name", "")))
