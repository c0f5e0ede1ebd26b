"""One client as the router sees it: a publisher, and the sink of its subscriptions.

Owns: the client's subscriptions, permissions and traffic counters; the encoding of deliveries;
auto-unsubscribe when a subscription has got its last message.
May not touch: routing; the router has decided that this client gets the message.
Spec: NATS client protocol, SUB, UNSUB with max_msgs, MSG and HMSG; permissions of a user."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.accounts import Account
from broker.accounts.permissions import PermissionSet
from broker.server.client.client_socket import ClientSocket
from broker.server.client.outbound import Outbound
from broker.server.routing.internal_subscription import InterestTable
from broker.subjects import PublishingConnection, Sink, SinkKind, Subscription, valid_subject
from broker.wire import encode_msg

if TYPE_CHECKING:
    from broker.wire import PubRun

OK = b"+OK\r\n"


class ClientSink:
    """Sink and publisher of one connection. One call delivers a whole segment of a run."""

    kind = SinkKind.CLIENT
    groups = None  # what a client publishes is for all queue groups

    def __init__(
        self,
        cid: int,
        account: Account,
        router: InterestTable,
        *,
        outbound: Outbound,
        socket: ClientSocket,
        error: Callable[[str], None],
    ) -> None:
        self.cid = cid
        # Set by CONNECT; until then, the protocol's defaults.
        self.name = ""
        self.echo = True
        self.verbose = True
        self.pedantic = True
        self.headers_ok = False
        self.no_responders = False
        self.account = account
        self.subs: dict[bytes, Subscription] = {}
        self.guarded = True  # its publishes must pass check_publish
        self.permissions: PermissionSet | None = None
        self.watchful = False  # inspect each delivery: for permissions, or for the trace log (-V)
        self.in_msgs = 0
        self.in_bytes = 0
        self.out_msgs = 0
        self.out_bytes = 0
        self.queue = outbound.queue  # replaced where -V shows what is sent
        self.pause_reading = socket.pause_reading
        self.resume_reading = socket.resume_reading
        self._outbound = outbound
        self._router = router
        self._error = error

    @property
    def closed(self) -> bool:
        return self._outbound.closed

    @property
    def rules(self) -> PermissionSet | None:
        return self.permissions

    def skips(self, sink: Sink) -> bool:
        return sink is self and not self.echo

    # -- deliveries -------------------------------------------------------------------------

    def deliver(
        self, sub: Subscription, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> bool:
        if self._outbound.closed or sub.closed:
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
        publisher: PublishingConnection | None,
    ) -> bool:
        if self._outbound.closed or sub.closed:
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
            sub, data, messages=stop - start, payload_bytes=size, publisher=publisher
        )

    def deliver_encoded(
        self,
        sub: Subscription,
        data: bytes,
        *,
        messages: int,
        payload_bytes: int,
        publisher: PublishingConnection | None = None,
    ) -> bool:
        """MSG lines that the caller has already encoded for `sub` (see Router.bulk)."""
        outbound = self._outbound
        if outbound.closed or sub.closed:
            return False
        sub.delivered += messages
        self.out_msgs += messages
        self.out_bytes += payload_bytes
        self.queue(data)
        if sub.max_msgs and sub.delivered >= sub.max_msgs:
            self.drop_subscription(sub)
        # A client never stalls itself: its own reads may be what frees the queue.
        crowded = outbound.unsent.bytes > outbound.max_pending
        if (
            publisher is not None
            and (crowded or outbound.queued_bytes > outbound.stall_above)
            and publisher is not self
        ):
            self._hold_back(publisher)
        return True

    def _hold_back(self, publisher: PublishingConnection) -> None:
        """Backpressure on a publisher. One of another account is only stalled (for a bounded time)
        for this client's own queue, never for the account's total."""
        if publisher.cid in self.account.connections:
            self._outbound.wait_for_readers(publisher)
        elif self._outbound.queued_bytes > self._outbound.stall_above:
            self._outbound.stall(publisher)

    def deliver_answers(
        self, sub: Subscription, data: bytes, *, messages: int, payload_bytes: int
    ) -> bool:
        """Like deliver_encoded, for a subscription without a message limit; writes immediately."""
        outbound = self._outbound
        if outbound.closed or sub.closed:
            return False
        sub.delivered += messages
        self.out_msgs += messages
        self.out_bytes += payload_bytes
        outbound.send(data)
        return True

    def _inspect(self, sub: Subscription, subject: bytes, reply: bytes) -> bool:
        """Whether the client may receive this subject. If so, it may publish to the reply subject
        (`allow_responses`)."""
        permissions = self.permissions
        if permissions is None:
            return True
        if permissions.filters(sub.subject) and not permissions.may_receive(subject):
            return False
        if reply and permissions.responses is not None:
            permissions.grant(reply, now_ns=time.monotonic_ns())
        return True

    def enter(self, account: Account) -> None:
        self.account = account
        self._outbound.enter_account(account.unsent)

    # -- subscriptions ----------------------------------------------------------------------

    def add_subscription(self, subject: bytes, queue: bytes, sid: bytes) -> None:
        if sid not in self.subs:
            sub = Subscription(self, self.account, subject, queue, sid)
            self.subs[sid] = sub
            self._router.subscribe(self.account, sub)

    def drop_subscription(self, sub: Subscription) -> None:
        if self.subs.pop(sub.sid, None) is not None:
            self._router.unsubscribe(self.account, sub)

    # -- publishing -------------------------------------------------------------------------

    def check_publish(self, subject: bytes, start: int, stop: int) -> int:
        """Check one segment of a client that is restricted, pedantic or verbose, and send its +OK
        and -ERR lines. Returns where the allowed rows end."""
        for _ in range(start, stop):
            if self.pedantic and not valid_subject(subject, wildcards=False):
                self.error("Invalid Publish Subject")
        allowed = stop
        if self.permissions is not None:
            now_ns = time.monotonic_ns()
            allowed = start + self.permissions.publishable(subject, stop - start, now_ns=now_ns)
        if self.verbose and allowed > start:
            self.queue(OK * (allowed - start))
        for _ in range(allowed, stop):
            self.refuse_publish(subject)
        return allowed

    def may_publish_to(self, subject: bytes) -> bool:
        permissions = self.permissions
        return permissions is None or permissions.may_publish(subject, now_ns=time.monotonic_ns())

    def refuse_publish(self, subject: bytes) -> None:
        shown = subject.decode(errors="backslashreplace")
        self.error(f'Permissions Violation for Publish to "{shown}"')

    def error(self, text: str) -> None:
        """Send -ERR; the connection stays."""
        self._error(text)

    def set_guard(self) -> None:
        """After CONNECT or a change of permissions."""
        self.guarded = bool(self.verbose or self.pedantic or self.permissions)
