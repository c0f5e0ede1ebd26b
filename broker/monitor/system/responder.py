"""Requests in the system account: subscriptions in, enveloped answers out.

Owns: the subscriptions of the system services, and the envelope of an answer.
May not touch: what is asked.
The subscriptions are announced to peers like those of a client: a request reaches every server,
and a request to a server that is down has no responders.
Spec: NATS system account, $SYS.REQ."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from broker.accounts import Account
from broker.monitor.documents.query import BadQuery
from broker.monitor.observed import Observed
from broker.monitor.system import requests
from broker.server.routing.internal_subscription import InternalSubscription
from broker.server.services import Document, Query

Make = Callable[[Query], Document | None]  # None: no answer from this server
Taken = Callable[[bytes, bytes, bytes, bytes], None]  # subject, reply, headers, payload


class Responder:
    """One per server. Its subscriptions stay open as long as the server."""

    def __init__(self, observed: Observed) -> None:
        self.observed = observed
        self._inboxes: list[InternalSubscription] = []

    def listen(self, subject: str, taken: Taken, account: Account | None = None) -> None:
        where = account or self.observed.system_account
        self._inboxes.append(
            InternalSubscription(self.observed.server.router, where, subject.encode(), taken)
        )

    def serve(self, subject: str, make: Make, account: Account | None = None) -> None:
        """Answer with the document, if there is one and this server is addressed."""
        self.listen(subject, partial(self._asked, make, account), account)

    def _asked(
        self, make: Make, account: Account | None, _: bytes, reply: bytes, __: bytes, payload: bytes
    ) -> None:
        self.answer(make, reply, payload, account)

    def answer(
        self, make: Make, reply: bytes, payload: bytes, account: Account | None = None
    ) -> None:
        if reply and (document := enveloped(self.observed, make, payload)) is not None:
            self.send(reply, document, account)

    def send(self, to: bytes, document: Document, account: Account | None = None) -> None:
        body = msgspec.json.encode(document)
        self.observed.server.router.publish(
            account or self.observed.system_account, to, b"", b"", body
        )


def enveloped(observed: Observed, make: Make, payload: bytes) -> Document | None:
    """The answer, or None when another server is addressed."""
    try:
        filters, asked = requests.read(payload)
        if not filters.match(observed):
            return None
        query = requests.query(asked)
    except requests.BadRequest as error:
        return {"server": observed.stamp(), "error": failure(400, error)}
    try:
        data = make(query)
    except BadQuery as error:
        return {"server": observed.stamp(), "data": None, "error": failure(500, error)}
    return None if data is None else {"server": observed.stamp(), "data": data}


def failure(code: int, error: Exception) -> Document:
    return {"code": code, "description": str(error)}
