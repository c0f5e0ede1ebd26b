"""The numbers of all servers of the cluster, for the console and `jetraft top`.

Owns: the request to all servers and the wait for their answers.
May not touch: the numbers; each server answers with its own STATSZ.
Spec: NATS system account, $SYS.REQ.SERVER.PING. Bound: WAIT_S, or until every known server has
answered."""

from __future__ import annotations

import asyncio
import secrets

import msgspec

from broker.monitor.observed import Observed
from broker.server.routing.internal_subscription import InternalSubscription
from broker.server.services import Document

WAIT_S = 0.5
PING = b"$SYS.REQ.SERVER.PING.STATSZ"


async def nodes(observed: Observed) -> Document:
    """{"servers": [STATSZ, ...]}, in the order of their names."""
    runtime = observed.runtime
    expected = 1 + (0 if runtime is None else int(runtime.routez()["num_routes"]))
    found: list[Document] = []
    complete = asyncio.Event()

    def taken(_subject: bytes, _reply: bytes, _headers: bytes, payload: bytes) -> None:
        found.append(msgspec.json.decode(payload, type=dict))
        if len(found) >= expected:
            complete.set()

    inbox = f"_INBOX.{secrets.token_hex(11)}".encode()
    account, router = observed.system_account, observed.server.router
    subscription = InternalSubscription(router, account, inbox, taken)
    try:
        router.publish(account, PING, inbox, b"", b"")
        await _set_within(complete, WAIT_S)
    finally:
        subscription.close()
    found.sort(key=lambda one: str(one.get("server", {}).get("name", "")))
    return {"servers": found}


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False  # a server that does not answer in time is not shown
