"""One publish, as every workload sends and records it.

Owns: what an answer of the broker means for the journal.
May not touch: what is published, and how a workload reacts to the answer.
Spec: without an answer it may be stored or not; after an error it is not."""

from __future__ import annotations

import json
from typing import Final

from chaos.sim.clients.workload import Scene, WorkClient
from chaos.sim.promises.journal import Operation

ANSWER_WITHIN_S: Final = 4.0


async def publish_recorded(
    scene: Scene,
    client: WorkClient,
    operation: Operation,
    subject: str,
    payload: bytes,
    *,
    headers: bytes = b"",
    timeout_s: float = ANSWER_WITHIN_S,
) -> int:
    """The sequence of the ack, 0 without one. `operation` then has the result."""
    try:
        answer = await client.request(
            subject.encode(), payload, headers=headers, timeout_s=timeout_s
        )
    except TimeoutError:
        return 0
    body = {"error": answer.status} if answer.status else json.loads(answer.data)
    if "error" in body:
        scene.journal.failed(operation, error=body["error"])
        return 0
    scene.journal.ok(operation, **{"duplicate": False, **body})
    return int(body["seq"])
