"""One client connection: operations in, answers and deliveries out.

Owns: the parser, the subscriptions and the identity of one client.
May not touch: other connections (the router does), stored messages.
Spec: core contract 1, 3.1 and 3.8. Whatever a peer sends can end this connection only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from broker.accounts import Account
from broker.accounts.identity import Credentials, Identity
from broker.accounts.permissions import PermissionSet
from broker.server.client import protocol_trace as trace
from broker.server.client.close_reason import VIOLATION_REASONS, Reason
from broker.server.client.connect_options import BadConnect, parse_connect
from broker.server.client.connection_record import ConnectionRecord, record
from broker.server.client.endpoint import OK, Endpoint
from broker.server.process.log import TRACE, logger
from broker.server.process.server_id import nonce
from broker.server.routing.fair_queue import TURN_S
from broker.server.routing.reserved_subjects import refusals
from broker.server.tracing import tracing
from broker.subjects import Subscription, valid_subject
from broker.wire import ClientParser, Op, ProtocolViolation, PubRun

if TYPE_CHECKING:
    from broker.server.client.listener_profile import ListenerProfile
    from broker.server.server import Server
    from broker.server.services import JetStreamRuntime

PONG = b"PONG\r\n"
LEAVING_PER_TURN = 1000  # subscriptions of a client that goes, taken out in one turn of the loop
NOTHING_BROUGHT = Credentials()
LOOK_MASK = 63  # every 64th operation looks at the clock
SYSTEM_QUEUE = b"_sys_"
SCAN_SUBJECT = b"$JS.API.STREAM.SCAN.PLAN"  # who may not plan a bulk read may not do one


class Connection(Endpoint):
    """A client from accept to close. Created by the listener for every socket."""

    def __init__(
        self,
        server: Server,
        loop: asyncio.AbstractEventLoop,
        entrance: ListenerProfile,
        brought: Credentials = NOTHING_BROUGHT,
    ) -> None:
        super().__init__(server, loop, entrance)
        self._brought = brought  # credentials that came before CONNECT, for what it leaves out
        limits = server.options.limits
        self.account: Account = server.global_account
        self.identity = Identity()
        self.nonce = nonce() if entrance.authenticator.asks_for_signatures else ""
        self.echo = True
        self.no_responders = False
        self.admitted = False  # once a CONNECT was accepted
        self.guarded = True  # verbose and pedantic are the defaults before CONNECT
        self._parser = ClientParser(
            max_control_line=limits.max_control_line, max_payload=limits.max_payload
        )
        # Operations that wait: for a slow authentication, or for the next turn.
        self._held: list[Any] | None = None
        self._unfinished: tuple[PubRun, int] | None = None  # a run, and the row it goes on from
        self._afterwards: Callable[[], None] | None = None  # once nothing waits any more
        anonymous = entrance.authenticator.anonymous()
        if anonymous is not None:
            self._enter(anonymous)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.server.admit(self)

    def _info(self) -> bytes:
        return self.server.info_line(self, nonce=self.nonce)

    def _begin_close(self, reason: Reason) -> None:
        super()._begin_close(reason)
        self.server.forget(self)
        # Members of queues first. Whoever is still in a table takes nothing any more, and a queue
        # goes on to its next member.
        subs = self.subs.values()
        self._leave(iter(sorted(subs, key=lambda sub: not sub.queue)))

    def _leave(self, subs: Iterator[Subscription]) -> None:
        """Out of the tables: so many now, the others in later turns of the loop."""
        for sub in islice(subs, LEAVING_PER_TURN):
            self.drop_subscription(sub)
        if self.subs:
            self._loop.call_soon(self._leave, subs)

    # -- operations -------------------------------------------------------------------------

    def _receive(self, chunk: bytes) -> None:
        violation: ProtocolViolation | None = None
        try:
            events: list[Any] = self._parser.receive(chunk)
        except ProtocolViolation as found:
            violation, events = found, found.events
        self._carry_out(events)
        if self._flush_due:  # what is answered at once need not wait for the end of the turn
            self.flush()
        if violation is not None and not self.closed:
            wrong = violation
            self._when_done(lambda: self._wrong_input(wrong))

    def _wrong_input(self, violation: ProtocolViolation) -> None:
        if not self.authorized:
            self._authorization_violation()
        else:
            self._violation(violation)

    def peer_ended(self) -> None:
        self._when_done(lambda: self.close(Reason.CLIENT_CLOSED))

    def _violation(self, violation: ProtocolViolation) -> None:
        text = violation.text
        reason = VIOLATION_REASONS.get(text or "", Reason.PARSE_ERROR)
        if text is None:
            self.close(reason)
        else:
            logger.error("%s - %s", self.label, text)
            self.fail(text, reason)

    def _carry_out(self, events: list[Any]) -> None:
        if self._held is not None:
            self._held.extend(events)
            return
        deadline = time.perf_counter() + TURN_S
        for position, event in enumerate(events):
            op = event[0]
            if position & LOOK_MASK == LOOK_MASK and time.perf_counter() > deadline:
                self._end_turn(events[position:])
                return
            if self._tracing:
                self._trace_in(event)
            if not self.authorized and op is not Op.CONNECT:
                self._authorization_violation()
            elif op is Op.PUB:
                self._publish(event[1])
            else:
                self._operation(op, event)
            if self.closed:
                return
            if self._held is not None:
                self._held.extend(events[position + 1 :])
                return
        if events and time.perf_counter() > deadline:
            self._end_turn([])  # else the next chunk of a full socket is read at once

    # -- turns ------------------------------------------------------------------------------

    def _end_turn(self, held: list[Any]) -> None:
        """Others first. What waits is carried out in order before anything else is read."""
        self._held = held
        self.pause_reading()
        self.server.turns.wait(self._next_turn)

    def _next_turn(self) -> None:
        held, self._held = self._held or [], None
        self.resume_reading()
        if self.closed:
            return
        if self._unfinished is not None:
            self._publish_rest(*self._unfinished)
        self._carry_out(held)
        self._when_done(None)

    def _publish_rest(self, run: PubRun, first: int) -> None:
        row = self.server.router.publish_run(self, run, first)
        self._unfinished = None
        if row < len(run):
            self._unfinished = (run, row)
            self._end_turn([])

    def _when_done(self, act: Callable[[], None] | None) -> None:
        """Do it as soon as nothing waits: now, or at the end of a later turn."""
        self._afterwards = self._afterwards or act
        if self._held is None and self._afterwards is not None and not self.closed:
            act, self._afterwards = self._afterwards, None
            act()

    def _operation(self, op: Op, event: tuple[Any, ...]) -> None:
        match op:
            case Op.PING:
                self._ping()
            case Op.SUB:
                self._subscribe(event[1], event[2] or b"", event[3])
            case Op.UNSUB:
                self._unsubscribe(event[1], event[2])
            case Op.PONG:
                self.live.pong()
            case Op.CONNECT:
                self._connect(event[1])
            case Op.SCAN:
                self._scan(event[1])
            case Op.ERR:
                self.close(Reason.CLIENT_CLOSED)
            case _:  # INFO and +OK from a client mean nothing
                pass

    def _publish(self, run: PubRun) -> None:
        traced = tracing.rows(run, self.account) if run.has_headers else None
        if not traced:
            self._publish_run(run)
            return
        pieces = tracing.pieces(run, traced)
        for position, (piece, alone) in enumerate(pieces, 1):
            self._publish_run(piece, traced=alone)
            if self.closed:
                return
            if self._held is not None:  # the turn is over: the rest goes before all that waits
                self._held.extend((Op.PUB, rest) for rest, _ in pieces[position:])
                return

    def _publish_run(self, run: PubRun, *, traced: bool = False) -> None:
        self.in_msgs += len(run)
        self.in_bytes += run.total_bytes
        self.live.activity()
        if run.has_headers and not (self.connect.headers and self.server.options.headers):
            self.close(Reason.MESSAGE_HEADER_VIOLATION)
            return
        untraced = self.server.tracing.publish(self, run) if traced else run
        if untraced is not None:
            self._publish_untraced(untraced)

    def _publish_untraced(self, run: PubRun) -> None:
        refused = refusals(run)
        if refused:
            for text in refused.values():
                self.error(text)
            rest = [run.message(row) for row in range(len(run)) if row not in refused]
            run = PubRun.of(rest)
        self._publish_rest(run, 0)

    def may_publish(self, run: PubRun, subject: bytes, start: int, stop: int) -> bool:
        """The checks of one segment for a client that is restricted, pedantic or verbose."""
        for _ in range(start, stop):
            if self.connect.pedantic and not valid_subject(subject, wildcards=False):
                self.error("Invalid Publish Subject")
        if self.permissions is not None:
            now_ns = time.monotonic_ns()
            if not self.permissions.may_publish(subject, now_ns=now_ns):
                for _ in range(start, stop):
                    self.refuse_publish(subject)
                return False
        if self.connect.verbose:
            self.queue(OK * (stop - start))
        return True

    def refuse_publish(self, subject: bytes) -> None:
        shown = subject.decode(errors="backslashreplace")
        self.error(f'Permissions Violation for Publish to "{shown}"')

    def _ping(self) -> None:
        self.queue(PONG)
        self.live.activity()
        if self.connect_received and not self.first_pong_sent:
            self.first_pong_sent = True
            if self.connect.protocol >= 1:
                self.queue(self.server.info_line(self, connect_info=True))

    def _subscribe(self, subject: bytes, queue: bytes, sid: bytes) -> None:
        self.live.activity()
        text = self._subscription_refusal(subject, queue)
        if text is not None:
            self.error(text)
            return
        if sid not in self.subs:
            sub = Subscription(self, self.account, subject, queue, sid)
            self.subs[sid] = sub
            self.server.router.subscribe(self.account, sub)
        self._ok()

    def _subscription_refusal(self, subject: bytes, queue: bytes) -> str | None:
        if not valid_subject(subject, wildcards=True):
            return "Invalid Subject"
        shown = subject.decode(errors="backslashreplace")
        limits = self.server.options.limits
        allowed = self.permissions is None or self.permissions.may_subscribe(subject, queue)
        if not allowed or queue == SYSTEM_QUEUE:
            group = queue.decode(errors="backslashreplace")
            named = f' using queue "{group}"' if queue else ""
            return f'Permissions Violation for Subscription to "{shown}"{named}'
        if 0 < limits.max_sub_tokens < subject.count(b".") + 1:
            return f'Permissions Violation for Subscription to "{shown}", too many tokens'
        granted = (self.account.options.max_subscriptions, self.identity.max_subscriptions)
        count = len(self.subs)
        if 0 < limits.max_subscriptions <= count or any(0 <= one <= count for one in granted):
            return "maximum subscriptions exceeded"
        return None

    def _unsubscribe(self, sid: bytes, limit: int) -> None:
        self.live.activity()
        sub = self.subs.get(sid)
        if sub is not None:
            if limit > sub.delivered:
                sub.max_msgs = limit
            else:
                self.drop_subscription(sub)
        self._ok()

    def drop_subscription(self, sub: Subscription) -> None:
        if self.subs.pop(sub.sid, None) is not None:
            self.server.router.unsubscribe(self.account, sub)

    def _limit_reached(self, sub: Subscription) -> None:
        self.drop_subscription(sub)

    def _scan(self, request: bytes) -> None:
        services = self.server.services
        if services is None:
            self._violation(ProtocolViolation("Unknown Protocol Operation"))
            return
        if self.scans:  # its answer would stand inside the bytes of the other one
            self._violation(ProtocolViolation("one scan at a time"))
            return
        now_ns = time.monotonic_ns()
        permissions = self.permissions
        if permissions is not None and not permissions.may_publish(SCAN_SUBJECT, now_ns=now_ns):
            self.refuse_publish(SCAN_SUBJECT)
            return
        self.scans += 1
        self.server.spawn(self._run_scan(services, request), name=f"scan cid={self.cid}")

    async def _run_scan(self, services: JetStreamRuntime, request: bytes) -> None:
        try:
            await services.scan(self, request)
        finally:
            self.scans -= 1

    # -- CONNECT ----------------------------------------------------------------------------

    def _connect(self, text: bytes) -> None:
        try:
            options = parse_connect(text).completed(self._brought)
        except BadConnect as bad:
            logger.debug("%s - %s", self.label, bad)
            self.close(Reason.PROTOCOL_VIOLATION)
            return
        for sub in list(self.subs.values()):
            self.drop_subscription(sub)
        self.connect = options
        self.connect_received = True
        self.live.connect_seen()
        self.echo = options.echo
        if options.protocol not in (0, 1):
            self.fail("invalid client protocol", Reason.BAD_CLIENT_PROTOCOL)
            return
        authenticator = self.entrance.authenticator
        if options.account:
            self._authorization_violation()
        elif authenticator.slow(given := self.credentials):
            # A hash takes tens of milliseconds: not on the loop. What follows waits in order.
            self._held = []
            self.pause_reading()
            self.server.spawn(self._identify_slowly(given), name=f"auth cid={self.cid}")
        else:
            self._admit(authenticator.identify(given))

    @property
    def credentials(self) -> Credentials:
        kind = self.entrance.connection_type
        return self.connect.credentials(self.nonce, self.host, kind)

    async def _identify_slowly(self, given: Credentials) -> None:
        identify = self.entrance.authenticator.identify
        try:
            identity = await self._loop.run_in_executor(None, identify, given)
        finally:
            held, self._held = self._held or [], None
            self.resume_reading()
        if not self.closed:
            self._admit(identity)
            if not self.closed:
                self._carry_out(held)
                self._when_done(None)

    def _admit(self, identity: Identity | None) -> None:
        if identity is None:
            self._authorization_violation()
            return
        self._enter(identity)
        if 0 <= self.account.options.max_connections < len(self.account.connections):
            text = "maximum account active connections exceeded"
            logger.error("%s - %s", self.label, text)
            self.fail(text, Reason.MAX_ACCOUNT_CONNECTIONS)
            return
        options = self.connect
        headers = options.headers and self.server.options.headers
        if options.no_responders and not headers:
            self.fail("no responders requires headers support", Reason.NO_RESPONDERS_HEADERS)
            return
        self.headers_ok = headers
        self.no_responders = options.no_responders
        self.guarded = bool(options.verbose or options.pedantic or self.permissions)
        self._ok()
        self.live.start_pings()
        if not self.admitted:
            self.admitted = True
            self.server.system.events.connected(self)

    def record(self) -> ConnectionRecord:
        return record(self, now=time.time(), loop_now=self._loop.time())

    def _enter(self, identity: Identity) -> None:
        """Become that user, in that account."""
        self.authorized = True
        self.identity = identity
        self.account.connections.pop(self.cid, None)
        self.account = self.server.account(identity.account)
        self.account.connections[self.cid] = self
        self.live.end_at(identity.expires, identity.farewell)
        self._parser.max_payload = self.payload_max
        rules = identity.permissions
        self.permissions = None if rules is None else PermissionSet(rules)
        self.watchful = self._tracing or self.permissions is not None

    @property
    def payload_max(self) -> int:
        """What this client may send: the smallest limit of the server, its account and itself."""
        server = self.server.options.limits.max_payload
        limits = (server, self.account.options.max_payload, self.identity.max_payload)
        return min((limit for limit in limits if limit >= 0), default=-1)

    def reauthenticate(self) -> None:
        """The configuration changed: leave, or keep what is still permitted."""
        identity = self.entrance.authenticator.identify(self.credentials)
        if identity is None or identity.account != self.account.name:
            self._authorization_violation()
            return
        self._enter(identity)
        options = self.connect
        self.guarded = bool(options.verbose or options.pedantic or self.permissions)
        for sub in list(self.subs.values()):
            if self.permissions is None or self.permissions.may_subscribe(sub.subject, sub.queue):
                continue
            self.drop_subscription(sub)
            subject, sid = sub.subject.decode(errors="replace"), sub.sid.decode(errors="replace")
            group = f' using queue "{sub.queue.decode(errors="replace")}"' if sub.queue else ""
            place = f'"{subject}"{group} (sid "{sid}")'
            self.error(f"Permissions Violation for Subscription to {place}")

    def _authorization_violation(self) -> None:
        logger.error("%s - authentication error - %s", self.label, self.connect.shown_user)
        self.fail("Authorization Violation", Reason.AUTHENTICATION_VIOLATION)

    def _trace_in(self, event: tuple[Any, ...]) -> None:
        limit = self.server.options.logging.max_traced_msg_len
        for line in trace.inbound(event, payload_max=limit):
            logger.log(TRACE, "%s - %s", self.label, line)
