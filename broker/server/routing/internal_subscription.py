"""A subscription of this node itself, announced to all nodes like a client's.

Owns: the sink between the router and a callback.
May not touch: what the messages mean.
Used for the messages of one client (snapshots, restores) and for the answers of imported services:
the other side may be connected to any node.
Spec: NATS client protocol, SUB."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.accounts import Account
from broker.subjects import PublishingConnection, SinkKind, Subscription
from broker.wire import PubRun

Taken = Callable[[bytes, bytes, bytes, bytes], None]  # subject, reply, headers, payload


class InterestTable(Protocol):
    """The router, as far as it takes subscriptions."""

    def subscribe(self, account: Account, sub: Subscription) -> None: ...

    def unsubscribe(self, account: Account, sub: Subscription) -> None: ...


class InternalSubscription:
    """Calls back in order of arrival, until it is closed."""

    kind = SinkKind.CLIENT  # so that it is announced to peers
    watchful = True  # messages are delivered one by one: there is no socket to encode for

    def __init__(
        self, router: InterestTable, account: Account, subject: bytes, taken: Taken
    ) -> None:
        self._router = router
        self._account = account
        self._taken = taken
        # The local connection that published the current message; None: it came from elsewhere.
        self.publisher: PublishingConnection | None = None
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
        publisher: PublishingConnection | None,
    ) -> bool:
        self.publisher = publisher
        try:
            for row in range(start, stop):
                self._taken(*run.message(row))
        finally:
            self.publisher = None
        return True
