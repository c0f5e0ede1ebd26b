"""Servers with a system account, and clients that send requests there."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from broker.config.options import Authorization, User
from broker.server.server import Server
from tests.support.clients import open_client
from tests.support.server import PATIENCE

SYSTEM = "SYS"
USERS = (User("admin", "pw", account=SYSTEM), User("otto", "pw", account="A"))
SETTINGS: dict[str, Any] = {
    "system_account": SYSTEM,
    "authorization": Authorization(users=USERS),
    "server_name": "n-1",
}


async def client(server: Server, user: str = "admin", **settings: Any) -> Any:
    url = f"nats://{user}:pw@127.0.0.1:{server.port}"
    return await open_client(url, allow_reconnect=False, **settings)


async def ask(asking: Any, subject: str, body: object = None) -> Any:
    payload = b"" if body is None else msgspec.json.encode(body)
    answer = await asking.request(subject, payload, timeout=PATIENCE)
    return msgspec.json.decode(answer.data)


async def asked(asking: Any, subject: str, body: object = None, *, answers: int = 0) -> list[Any]:
    """All answers of a single server, at least so many: then the answer to a second request marks
    the end. Documents are made in turns, so without waiting the second could come first."""
    inbox = asking.new_inbox()
    took = await asking.subscribe(inbox)
    payload = body if isinstance(body, bytes) else msgspec.json.encode(body or {})
    await asking.publish(subject, payload, reply=inbox)
    found: list[Any] = []
    async with asyncio.timeout(PATIENCE):
        while len(found) < answers:
            found.append(msgspec.json.decode((await took.next_msg(PATIENCE)).data))
        await asking.publish("$SYS.REQ.USER.INFO", reply=inbox)
        while True:
            answer = msgspec.json.decode((await took.next_msg(PATIENCE)).data)
            if "user" in answer.get("data", {}):
                break
            found.append(answer)
    await took.unsubscribe()
    return found
