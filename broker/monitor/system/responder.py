"""Requests in the system account: subscriptions in, enveloped answers out.

Owns: the subscriptions of the system services, the envelope of an answer, and how many answers are
made at a time: MADE_MAX for an account; WAITING_MAX of its requests are kept, the rest is dropped.
May not touch: what is asked.
Answers are made in steps, in the turns of the account that asks.
The subscriptions are announced to peers like those of a client: a request reaches every server,
and a request to a server that is down has no responders.
Spec: NATS system account, $SYS.REQ."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

import msgspec

from broker.accounts import Account
from broker.monitor.documents.json_text import json_text
from broker.monitor.documents.query import BadQuery
from broker.monitor.observed import Observed
from broker.monitor.system import encodings, requests
from broker.server.routing.fair_queue import some_steps
from broker.server.routing.internal_subscription import InternalSubscription
from broker.server.services import Document, Query
from broker.subjects import Steps

MADE_MAX = 2
WAITING_MAX = 256

Make = Callable[[Query], Steps[Document] | Steps[Document | None]]  # None: no answer from here
Taken = Callable[[bytes, bytes, bytes, bytes], None]  # subject, reply, headers, payload
Message = tuple[bytes, bytes]  # headers, body


class Responder:
    """One per server. Its subscriptions stay open as long as the server."""

    def __init__(self, observed: Observed) -> None:
        self.observed = observed
        self._inboxes: list[InternalSubscription] = []
        self._made: dict[str, asyncio.Semaphore] = {}  # by account
        self._waiting: dict[str, int] = {}
        self.dropped = 0

    def listen(self, subject: str, taken: Taken, account: Account | None = None) -> None:
        where = account or self.observed.system_account
        self._inboxes.append(
            InternalSubscription(self.observed.server.router, where, subject.encode(), taken)
        )

    def serve(self, subject: str, make: Make, account: Account | None = None) -> None:
        """Answer with the document, if there is one and this server is addressed."""
        self.listen(subject, partial(self._asked, make, account), account)

    def _asked(self, make: Make, account: Account | None, _: bytes, *request: bytes) -> None:
        self.answer(make, *request, account=account)

    def answer(
        self,
        make: Make,
        reply: bytes,
        headers: bytes,
        payload: bytes,
        *,
        account: Account | None = None,
    ) -> None:
        if reply:
            made = enveloped(self.observed, make, payload)
            self.tell(reply, made, account, encoding=encodings.accepted(headers))

    def tell(
        self,
        to: bytes,
        made: Steps[Document | None],
        account: Account | None = None,
        *,
        encoding: bytes = b"",
    ) -> None:
        """Send what the steps return, at once if they are few; nothing if that is None."""
        name = (account or self.observed.system_account).name
        turns, steps = self.observed.server.turns, _encoded(made, encoding)
        waiting = self._waiting.get(name, 0)
        if waiting >= WAITING_MAX:
            self.dropped += 1
            return
        if not waiting and not turns.exhausted(name):
            began = time.perf_counter()
            done, message = some_steps(steps)
            turns.used(name, time.perf_counter() - began)
            if done:
                self._publish(to, message, account)
                return
        self._waiting[name] = waiting + 1
        work = self._tell(to, steps, account, name)
        self.observed.server.spawn(work, name=f"system answer to {name}")

    async def _tell(
        self, to: bytes, steps: Steps[Message | None], account: Account | None, name: str
    ) -> None:
        try:
            async with self._made.setdefault(name, asyncio.Semaphore(MADE_MAX)):
                message = await self.observed.server.turns.run(steps, name)
            self._publish(to, message, account)
        finally:
            self._waiting[name] -= 1
            if not self._waiting[name]:
                del self._waiting[name], self._made[name]

    def send(self, to: bytes, document: Document, account: Account | None = None) -> None:
        """A short document, at once."""
        self._publish(to, (b"", msgspec.json.encode(document)), account)

    def _publish(self, to: bytes, message: Message | None, account: Account | None) -> None:
        if message is not None:
            where = account or self.observed.system_account
            self.observed.server.router.publish(where, to, b"", *message)


def _encoded(made: Steps[Document | None], encoding: bytes) -> Steps[Message | None]:
    document = yield from made
    if document is None:
        return None
    body = yield from json_text(document)
    if not encoding or "error" in document:
        return b"", body
    return encodings.described(encoding), (yield from encodings.encode(body, encoding))


def enveloped(observed: Observed, make: Make, payload: bytes) -> Steps[Document | None]:
    """The answer, or None when another server is addressed."""
    try:
        filters, asked = requests.read(payload)
        if not filters.match(observed):
            return None
        query = requests.query(asked)
    except requests.BadRequest as error:
        return {"server": observed.stamp(), "error": failure(400, error)}
    try:
        data = yield from make(query)
    except BadQuery as error:
        return {"server": observed.stamp(), "data": None, "error": failure(500, error)}
    return None if data is None else {"server": observed.stamp(), "data": data}


def failure(code: int, error: Exception) -> Document:
    return {"code": code, "description": str(error)}
