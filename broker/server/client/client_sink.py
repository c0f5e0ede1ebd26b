"""A client as the taker of messages: encode, count, queue.

Owns: deliveries to one connection, their counters, auto-unsubscribe on the way out.
May not touch: routing; the router decided that this client gets it.
Spec: core contract 1.7 (headers stripped), 1.10 (UNSUB max), 1.11, 3.3 (filtered deliveries)."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from broker.accounts.permissions import PermissionSet
from broker.server.client.outbound import Outbound
from broker.subjects import PublishingConnection, SinkKind, Subscription
from broker.wire import encode_msg

if TYPE_CHECKING:
    from broker.wire import PubRun


class ClientSink(Outbound):
    """The Sink half of a connection; one call moves a whole segment."""

    kind = SinkKind.CLIENT

    def __init__(self, loop: asyncio.AbstractEventLoop, *, max_pending: int) -> None:
        super().__init__(loop, max_pending=max_pending)
        self.headers_ok = False
        self.permissions: PermissionSet | None = None
        self.watchful = False  # deliveries are looked at one by one: permissions or tracing
        self.in_msgs = 0
        self.in_bytes = 0
        self.out_msgs = 0
        self.out_bytes = 0

    def deliver(
        self, sub: Subscription, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> bool:
        if self.closed or sub.closed:
            return False
        if self.watchful and not self._inspect(sub, subject, reply):
            return False
        if not self.headers_ok:
            headers = b""
        data = encode_msg(subject, sub.sid, reply, headers, payload)
        return self.deliver_encoded(
            sub, data, messages=1, payload_bytes=len(headers) + len(payload)
        )

    def deliver_run(
        self,
        sub: Subscription,
        run: PubRun,
        start: int,
        stop: int,
        origin: PublishingConnection | None,
    ) -> bool:
        if self.closed or sub.closed:
            return False
        if self.watchful:
            taken = False
            for row in range(start, stop):
                taken = self.deliver(sub, *run.message(row)) or taken
            return taken
        size = run.size(start, stop)
        if run.has_headers and not self.headers_ok:
            size = sum(len(run.message(row)[3]) for row in range(start, stop))
        data = run.encode(start, stop, sub.sid, self.headers_ok)
        return self.deliver_encoded(
            sub, data, messages=stop - start, payload_bytes=size, origin=origin
        )

    def deliver_encoded(
        self,
        sub: Subscription,
        data: bytes,
        *,
        messages: int,
        payload_bytes: int,
        origin: PublishingConnection | None = None,
    ) -> bool:
        """MSG lines somebody has already encoded for `sub` (see Router.bulk): count and queue."""
        if self.closed or sub.closed:
            return False
        sub.delivered += messages
        self.out_msgs += messages
        self.out_bytes += payload_bytes
        self.queue(data)
        if sub.max_msgs and sub.delivered >= sub.max_msgs:
            self._limit_reached(sub)
        if origin is not None and self._queued_bytes > self._stall_above:
            self.stall(origin)
        return True

    def _inspect(self, sub: Subscription, subject: bytes, reply: bytes) -> bool:
        """May this subject reach the client? Grants the reply when responses are granted."""
        permissions = self.permissions
        if permissions is None:
            return True
        if permissions.filters(sub.subject) and not permissions.may_receive(subject):
            return False
        if reply and permissions.responses is not None:
            permissions.grant(reply, now_ns=time.monotonic_ns())
        return True

    def _limit_reached(self, sub: Subscription) -> None:
        raise NotImplementedError
