"""A sink that takes its messages one by one: the base of services that answer requests.

Owns: the two forms in which the router delivers, as one method.
May not touch: what a message means.
Spec: Sink in broker/subjects/subscription.py."""

from __future__ import annotations

from abc import ABC, abstractmethod

from broker.subjects import PublishingConnection, Subscription
from broker.wire import PubRun


class ServiceSink(ABC):
    """Subclasses implement `receive`, and have a `kind`."""

    __slots__ = ()

    @abstractmethod
    def receive(
        self,
        sub: Subscription,
        subject: bytes,
        reply: bytes,
        headers: bytes,
        payload: bytes,
        *,
        publisher: PublishingConnection | None,
    ) -> bool:
        """One message; `publisher` is None if it did not come from a connection of this node.
        Returns whether it was accepted."""

    def deliver(
        self, sub: Subscription, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> bool:
        return self.receive(sub, subject, reply, headers, payload, publisher=None)

    def deliver_run(
        self,
        sub: Subscription,
        run: PubRun,
        start: int,
        stop: int,
        publisher: PublishingConnection | None,
    ) -> bool:
        taken = False
        for row in range(start, stop):
            taken = self.receive(sub, *run.message(row), publisher=publisher) or taken
        return taken
