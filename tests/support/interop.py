"""What the interop tests share: raw API calls, and the check of answers and events."""

from __future__ import annotations

import json
from typing import Any

from tests.support.contract.checker import PREFIX, violation

Body = dict[str, Any]


def check(body: Body) -> None:
    """Fails unless the body satisfies the contract of its own `type`."""
    assert str(body["type"]).startswith(PREFIX), body
    found = violation(str(body["type"]).removeprefix(PREFIX), body)
    assert not found, f"{found}\n{body}"


async def api(client: Any, subject: str, body: object = b"", *, prefix: str = "$JS.API.") -> Body:
    """Sends one request and returns its JSON answer."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = await client.request(prefix + subject, payload, timeout=10)
    parsed: Body = json.loads(answer.data)
    return parsed
