"""What the interop tests share: one running server, raw API calls, the published schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

SCHEMAS = Path(__file__).parents[3] / "shared" / "spec" / "schemas" / "jetstream"
PREFIX = "io.nats.jetstream."

Body = dict[str, Any]

# Where the schemas are at odds with the reference server, which clients read: what is replaced.
_LIST = {"type": "array"}
_NUMBER = {"type": "integer", "minimum": 0}
CORRECTIONS: Mapping[str, Mapping[str, Any]] = {
    "api.v1.consumer_unpin_response": {"error": {"type": "object", "required": ["code"]}},
    "advisory.v1.nak": {"consumer_seq": _NUMBER},
    "advisory.v1.terminated": {"consumer_seq": _NUMBER},
    "advisory.v1.stream_leader_elected": {"replicas": _LIST, "account": {"type": "string"}},
    "advisory.v1.consumer_leader_elected": {"replicas": _LIST, "account": {"type": "string"}},
    "advisory.v1.stream_quorum_lost": {"replicas": _LIST, "account": {"type": "string"}},
    "advisory.v1.consumer_quorum_lost": {"replicas": _LIST, "account": {"type": "string"}},
    "advisory.v1.snapshot_create": {"state": {"type": "object"}},
    "advisory.v1.snapshot_complete": {"error": {"type": "string"}},
}
NOT_REQUIRED: Mapping[str, tuple[str, ...]] = {
    "advisory.v1.snapshot_create": ("blocks", "block_size"),
    "advisory.v1.consumer_group_pinned": ("server",),
    "advisory.v1.consumer_group_unpinned": ("server",),
}


@cache
def schema(kind: str) -> Body:
    """The schema of a type such as `api.v1.stream_info_response`."""
    found: Body = json.loads((SCHEMAS / f"{kind.replace('.', '/')}.json").read_text())
    if kind.startswith(("advisory.", "metric.")):
        found["properties"]["domain"] = {"type": "string"}  # every event of the server may have it
    for name, part in CORRECTIONS.get(kind, {}).items():
        found["properties"][name] = part
    found["required"] = [
        n for n in found.get("required", ()) if n not in NOT_REQUIRED.get(kind, ())
    ]
    return found


def check(body: Body) -> None:
    """Fails unless the body is what the schema of its own `type` says.

    Without the published schemas only the type is looked at, and the test goes on: its own
    assertions need none. `test_schemas.py` is the one that is skipped then."""
    assert str(body["type"]).startswith(PREFIX), body
    if not SCHEMAS.is_dir():
        return
    wanted = schema(str(body["type"]).removeprefix(PREFIX))
    if "error" in body and "oneOf" in wanted:
        # Failures print the fields that have no empty form, as the reference server's do: they
        # satisfy the schema of a success too.
        wanted = {("anyOf" if key == "oneOf" else key): part for key, part in wanted.items()}
    jsonschema.validate(body, wanted)


async def api(client: Any, subject: str, body: object = b"", *, prefix: str = "$JS.API.") -> Body:
    """One request, its JSON answer."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = await client.request(prefix + subject, payload, timeout=10)
    parsed: Body = json.loads(answer.data)
    return parsed
