"""A subscription of this node itself, known on every node as a client's would be.

Owns: the sink between the router and a callback.
May not touch: what the messages mean.
Conversations with one client (snapshots, restores) and answers to imported services use it: who
answers may be connected anywhere.
Spec: core contract 1.10."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.subjects import PublishingConnection, SinkKind, Subscription
from broker.wire import PubRun

if TYPE_CHECKING:
    from broker.accounts import Account
    from broker.server.routing.router import Router

Taken = Callable[[bytes, bytes, bytes, bytes], None]  # subject, reply, headers, payload


class InternalSubscription:
    """Open until closed. Calls back in the order of arrival."""

    kind = SinkKind.CLIENT  # so that peers hear of it
    watchful = True  # and nobody encodes for a socket it does not have

    def __init__(self, router: Router, account: Account, subject: bytes, taken: Taken) -> None:
        self._router = router
        self._account = account
        self._taken = taken
        self._sub = Subscription(self, account, subject, b"", b"1")
        router.subscribe(account, self._sub)

    def close(self) -> None:
        self._router.unsubscribe(self._account, self._sub)

    def deliver(
        self, sub: Subscription, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> bool:
        self._taken(subject, reply, headers, payload)
        return True

    def deliver_run(
        self,
        sub: Subscription,
        run: PubRun,
        start: int,
        stop: int,
        origin: PublishingConnection | None,
    ) -> bool:
        for row in range(start, stop):
            self._taken(*run.message(row))
        return True
