"""Where requests come in and answers go out.

Owns: the subscriptions of the system services, and the envelope of an answer.
May not touch: what is asked.
A subject is subscribed to as a client would: peers hear of it, so that a request reaches every
server, and one for a server that is not there has no responders.
Spec: core contract 9.1."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from broker.monitor.documents.query import BadQuery
from broker.monitor.system import requests
from broker.server.routing.internal_subscription import InternalSubscription
from broker.server.services import Document, Query

if TYPE_CHECKING:
    from broker.accounts import Account
    from broker.server.server import Server

Make = Callable[[Query], Document | None]  # None: this server has nothing to say
Taken = Callable[[bytes, bytes, bytes, bytes], None]  # subject, reply, headers, payload


class Responder:
    """Of one server. What is opened here stays open as long as the server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._inboxes: list[InternalSubscription] = []

    @property
    def system_account(self) -> Account:
        return self.server.account(self.server.options.system_account)

    def listen(self, subject: str, taken: Taken, account: Account | None = None) -> None:
        where = account or self.system_account
        self._inboxes.append(
            InternalSubscription(self.server.router, where, subject.encode(), taken)
        )

    def serve(self, subject: str, make: Make, account: Account | None = None) -> None:
        """Answer with the document, if there is one and this server is meant."""
        self.listen(subject, partial(self._asked, make, account), account)

    def _asked(
        self, make: Make, account: Account | None, _: bytes, reply: bytes, __: bytes, payload: bytes
    ) -> None:
        self.answer(make, reply, payload, account)

    def answer(
        self, make: Make, reply: bytes, payload: bytes, account: Account | None = None
    ) -> None:
        if reply and (document := enveloped(self.server, make, payload)) is not None:
            self.send(reply, document, account)

    def send(self, to: bytes, document: Document, account: Account | None = None) -> None:
        body = msgspec.json.encode(document)
        self.server.router.publish(account or self.system_account, to, b"", b"", body)


def enveloped(server: Server, make: Make, payload: bytes) -> Document | None:
    """The answer, or None where another server is meant."""
    try:
        filters, asked = requests.read(payload)
        if not filters.mean(server):
            return None
        query = requests.query(asked)
    except requests.BadRequest as error:
        return {"server": server.about.stamp(), "error": failure(400, error)}
    try:
        data = make(query)
    except BadQuery as error:
        return {"server": server.about.stamp(), "data": None, "error": failure(500, error)}
    return None if data is None else {"server": server.about.stamp(), "data": data}


def failure(code: int, error: Exception) -> Document:
    return {"code": code, "description": str(error)}
