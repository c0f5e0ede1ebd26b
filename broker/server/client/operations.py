"""The operations of one client: parse, carry out in order, and yield when a turn is over.

Owns: the parser, the operations that wait for the next turn or for a slow authentication, and
the checks of a SUB.
May not touch: other connections (the router does), the socket.
Spec: NATS client protocol. Invalid input closes this connection and affects no other."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from broker.accounts.identity import Credentials, Identity
from broker.server.client import protocol_trace
from broker.server.client.client_sink import OK, ClientSink
from broker.server.client.close_reason import VIOLATION_REASONS, ClosableConnection, Reason
from broker.server.client.connection_timers import ConnectionTimers
from broker.server.client.listener_profile import ListenerProfile
from broker.server.client.login import ClientLogin
from broker.server.client.outbound import Outbound
from broker.server.process.log import TRACE, logger
from broker.server.routing.fair_queue import TURN_S
from broker.server.routing.mapped_runs import mapped_run
from broker.server.routing.reserved_subjects import refusals
from broker.server.services import BulkReader, BulkReads, Document
from broker.server.tracing import tracing
from broker.subjects import valid_subject
from broker.wire import ClientParser, Op, ProtocolViolation, PubRun

PONG = b"PONG\r\n"
LOOK_MASK = 63  # the clock is read at every 64th operation
_SLOW = (Op.SUB, Op.UNSUB)  # the clock is also read before these: 900 tokens take 3 ms
SYSTEM_QUEUE = b"_sys_"
# A client that sends so much at once has more to send: nothing is read before this is done.
LARGE_CHUNK = 16 << 10


class OperatedConnection(ClosableConnection, BulkReader, Protocol):
    @property
    def host(self) -> str: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def first_pong(self) -> None:
        """PONG was sent after CONNECT: the client is ready for a second INFO."""

    def tls_document(self) -> Document | None:
        """The TLS session of the client, with its certificate; None without TLS."""

    async def run_in_thread(self, identify: Callable[[], Identity | None]) -> Identity | None: ...


class Operations:
    """Everything a client asks for passes through `receive`."""

    __slots__ = (
        "_afterwards", "_chunks", "_client", "_connection", "_context", "_held", "_internal",
        "_login", "_outbound", "_parser", "_paused", "_publish_one", "_publish_rows", "_timers",
        "_traced", "_tracing", "_unfinished", "_violated", "scans",
    )  # fmt: skip

    def __init__(
        self,
        connection: OperatedConnection,
        profile: ListenerProfile,
        client: ClientSink,
        *,
        outbound: Outbound,
        timers: ConnectionTimers,
        login: ClientLogin,
        parser: ClientParser,
    ) -> None:
        self._connection = connection
        self._context = profile.context
        self._internal = profile.internal
        self._client = client
        self._outbound = outbound
        self._timers = timers
        self._login = login
        self._parser = parser
        self._publish_one = profile.context.router.publish_one
        self._publish_rows = profile.context.router.publish_rest
        self._tracing = logger.isEnabledFor(TRACE)
        # Operations that wait: for a slow authentication, or for the next turn.
        self._held: list[Any] | None = None
        self._unfinished: tuple[PubRun, int] | None = None  # a run, and the row to continue from
        self._chunks: deque[bytes] = deque()  # not parsed yet; empty unless operations wait
        self._paused = False  # the socket is not read before the next turn
        self._violated = False  # protocol violation: ignore everything received after it
        self._traced = False  # a message of this turn asked for a trace, which takes longer
        self._afterwards: Callable[[], None] | None = None  # to call when no operation waits
        self.scans = 0  # bulk reads in progress

    def receive(self, chunk: bytes) -> None:
        turns, account = self._context.turns, self._client.account.name
        if self._held is not None:
            self._chunks.append(chunk)  # at most what was read before the socket was paused
            self._pause()
        elif turns.exhausted(account):
            self._chunks.append(chunk)
            if len(chunk) >= LARGE_CHUNK:
                self._pause()
            self._wait_turn([])  # most clients send nothing more before this is answered
        else:
            began = time.perf_counter()
            self._take(chunk)
            turns.used(account, time.perf_counter() - began)

    def _take(self, chunk: bytes) -> None:
        violation: ProtocolViolation | None = None
        try:
            events: list[Any] = self._parser.receive(chunk)
        except ProtocolViolation as found:
            violation, events = found, found.events
        if len(events) == 1 and violation is None and self._is_one_publish(events[0]):
            self._publish(events[0][1])
        else:
            self._carry_out(events)
        if self._outbound.flush_due:  # do not delay answers to the end of the loop's turn
            self._outbound.flush()
        if violation is not None and not self._outbound.closed:
            self._violated, wrong = True, violation
            self._when_done(lambda: self._wrong_input(wrong))

    def _is_one_publish(self, event: tuple[Any, ...]) -> bool:
        """Whether this is a single message of an authorized client: it needs no turn."""
        return (
            event[0] is Op.PUB
            and len(event[1]) == 1
            and self._held is None
            and self._login.authorized
            and not self._tracing
        )

    def peer_ended(self) -> None:
        """The client has closed its sending side: close once all its operations are done."""
        self._when_done(lambda: self._connection.close(Reason.CLIENT_CLOSED))

    def _wrong_input(self, violation: ProtocolViolation) -> None:
        if not self._login.authorized:
            self._login.refuse()
        else:
            self._violation(violation)

    def _violation(self, violation: ProtocolViolation) -> None:
        text = violation.text
        reason = VIOLATION_REASONS.get(text or "", Reason.PARSE_ERROR)
        if text is None:
            self._connection.close(reason)
        else:
            logger.error("%s - %s", self._connection.label, text)
            self._connection.fail(text, reason)

    def _carry_out(self, events: list[Any]) -> None:
        if self._held is not None:
            self._held.extend(events)
            return
        deadline = time.perf_counter() + TURN_S
        login = self._login
        self._traced = False
        for position, event in enumerate(events):
            op = event[0]
            slow = self._traced or op in _SLOW
            look = position & LOOK_MASK == LOOK_MASK or (position and slow)
            if look and time.perf_counter() > deadline:
                self._end_turn(events[position:])
                return
            if self._tracing:
                self._trace(event)
            if not login.authorized and op is not Op.CONNECT:
                login.refuse()
            elif op is Op.PUB:
                self._publish(event[1])
            else:
                self._operation(op, event)
            if self._outbound.closed:
                return
            if self._held is not None:
                self._held.extend(events[position + 1 :])
                return
        if events and time.perf_counter() > deadline:
            self._end_turn([])  # otherwise the next chunk of a full socket would be read at once

    # -- turns ------------------------------------------------------------------------------

    def _end_turn(self, held: list[Any]) -> None:
        """Let other connections run. The held operations run before anything else is read."""
        self._pause()
        self._wait_turn(held)

    def _wait_turn(self, held: list[Any]) -> None:
        self._held = held
        client = self._client
        self._context.turns.wait(self._next_turn, client.account.name, client.cid)

    def _pause(self) -> None:
        """Stop reading from the socket until the next turn."""
        if not self._paused:
            self._paused = True
            self._connection.pause_reading()

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            self._connection.resume_reading()

    def _next_turn(self) -> None:
        held, self._held = self._held or [], None
        self._resume()
        if self._outbound.closed:
            return
        if self._unfinished is not None:
            self._publish_rest(*self._unfinished)
        self._go_on(held)

    def _go_on(self, held: list[Any]) -> None:
        """Carry out the held operations and one chunk; leave the rest to another turn."""
        self._carry_out(held)
        if self._violated:
            self._chunks.clear()
        if self._held is None and self._chunks and not self._outbound.closed:
            self._take(self._chunks.popleft())
            if self._held is None and self._chunks:
                self._end_turn([])
        self._when_done(None)

    def _publish_rest(self, run: PubRun, first: int) -> None:
        row = self._publish_rows(self._client, run, first)
        self._unfinished = None
        if row < len(run):
            self._unfinished = (run, row)
            self._end_turn([])

    def _when_done(self, act: Callable[[], None] | None) -> None:
        """Call `act` as soon as no operation waits: now, or at the end of a later turn."""
        self._afterwards = self._afterwards or act
        if self._held is None and self._afterwards is not None and not self._outbound.closed:
            act, self._afterwards = self._afterwards, None
            act()

    # -- operations -------------------------------------------------------------------------

    def _operation(self, op: Op, event: tuple[Any, ...]) -> None:
        match op:
            case Op.PING:
                self._ping()
            case Op.SUB:
                self._subscribe(event[1], event[2] or b"", event[3])
            case Op.UNSUB:
                self._unsubscribe(event[1], event[2])
            case Op.PONG:
                self._timers.pong()
            case Op.CONNECT:
                self._connect(event[1])
            case Op.SCAN:
                self._scan(event[1])
            case Op.ERR:
                self._connection.close(Reason.CLIENT_CLOSED)
            case _:  # INFO and +OK from a client are ignored
                pass

    def _ok(self) -> None:
        if self._client.verbose:
            self._client.queue(OK)

    def _publish(self, run: PubRun) -> None:
        if not run.has_headers:
            client = self._client
            client.in_msgs += len(run)
            client.in_bytes += run.total_bytes
            self._timers.activity()
            self._publish_untraced(run)
            return
        traced = tracing.rows(run, self._client.account)
        if not traced:
            self._publish_run(run)
            return
        self._traced = True
        pieces = tracing.pieces(run, traced)
        deadline = time.perf_counter() + TURN_S
        for position, (piece, alone) in enumerate(pieces, 1):
            self._publish_run(piece, traced=alone)
            if self._outbound.closed:
                return
            late = position < len(pieces) and time.perf_counter() > deadline
            if late and self._held is None:
                self._end_turn([])
            if self._held is not None:  # the turn is over: the rest goes first in the next one
                self._held.extend((Op.PUB, rest) for rest, _ in pieces[position:])
                return

    def _publish_run(self, run: PubRun, *, traced: bool = False) -> None:
        client = self._client
        client.in_msgs += len(run)
        client.in_bytes += run.total_bytes
        self._timers.activity()
        if run.has_headers and not (
            self._login.connect.headers and self._context.settings.options.headers
        ):
            self._connection.close(Reason.MESSAGE_HEADER_VIOLATION)
            return
        untraced = self._context.tracing.publish(client, run) if traced else run
        if untraced is not None:
            self._publish_untraced(untraced)

    def _publish_untraced(self, run: PubRun) -> None:
        mappings = self._client.account.mappings
        if mappings is not None:
            run = mapped_run(mappings, run)
        refused = refusals(run, self._client.permissions)
        if refused:
            for text in refused.values():
                self._connection.error(text)
            rest = [run.message(row) for row in range(len(run)) if row not in refused]
            run = PubRun.of(rest)
        if len(run) != 1 or not self._publish_one(self._client, run):
            self._publish_rest(run, 0)

    def _ping(self) -> None:
        self._client.queue(PONG)
        self._timers.activity()
        if self._login.connect_received:
            self._connection.first_pong()

    def _subscribe(self, subject: bytes, queue: bytes, sid: bytes) -> None:
        self._timers.activity()
        text = None if self._internal else self._subscription_refusal(subject, queue)
        if text is not None:
            self._connection.error(text)
            return
        self._client.add_subscription(subject, queue, sid)
        self._ok()

    def _subscription_refusal(self, subject: bytes, queue: bytes) -> str | None:
        if not valid_subject(subject, wildcards=True):
            return "Invalid Subject"
        client = self._client
        shown = subject.decode(errors="backslashreplace")
        limits = self._context.settings.options.limits
        allowed = client.permissions is None or client.permissions.may_subscribe(subject, queue)
        if not allowed or queue == SYSTEM_QUEUE:
            group = queue.decode(errors="backslashreplace")
            named = f' using queue "{group}"' if queue else ""
            return f'Permissions Violation for Subscription to "{shown}"{named}'
        if 0 < limits.max_sub_tokens < subject.count(b".") + 1:
            return f'Permissions Violation for Subscription to "{shown}", too many tokens'
        granted = (
            client.account.options.max_subscriptions,
            self._login.identity.max_subscriptions,
        )
        count = len(client.subs)
        if 0 < limits.max_subscriptions <= count or any(0 <= one <= count for one in granted):
            return "maximum subscriptions exceeded"
        return None

    def _unsubscribe(self, sid: bytes, limit: int) -> None:
        self._timers.activity()
        sub = self._client.subs.get(sid)
        if sub is not None:
            if limit > sub.delivered:
                sub.max_msgs = limit
            else:
                self._client.drop_subscription(sub)
        self._ok()

    # -- operations that take time ----------------------------------------------------------

    def _connect(self, text: bytes) -> None:
        given = self._login.receive(text)
        if given is not None:
            # A password hash takes tens of milliseconds, so it is checked off the event loop; an
            # authorization service may take longer. Later operations wait for the result.
            self._held = []
            self._pause()
            self._context.spawn(self._identify_slowly(given), name=f"auth cid={self._client.cid}")

    async def _identify_slowly(self, given: Credentials) -> None:
        login = self._login
        try:
            account, fetched = login.missing_account(given), self._context.fetched
            if account and fetched is not None:
                host, ended = self._connection.host, self._outbound
                await fetched.fetch(account, host, wanted=lambda: not ended.closed)
            if login.delegates(given):
                caller = login.caller(self._connection.tls_document())
                identity = await self._context.callout.identify(given, caller)
            else:
                identity = await self._connection.run_in_thread(lambda: login.identify(given))
        finally:
            held, self._held = self._held or [], None
            self._resume()
        if not self._outbound.closed:
            login.admit(identity)
            if not self._outbound.closed:
                self._go_on(held)

    def _scan(self, request: bytes) -> None:
        reads = self._context.bulk_reads
        if reads is None:
            self._violation(ProtocolViolation("Unknown Protocol Operation"))
            return
        if self.scans:  # two answers would be interleaved
            self._violation(ProtocolViolation("one scan at a time"))
            return
        self.scans += 1
        self._context.spawn(self._run_scan(reads, request), name=f"scan cid={self._client.cid}")

    async def _run_scan(self, reads: BulkReads, request: bytes) -> None:
        try:
            await reads.scan(self._connection, request)
        finally:
            self.scans -= 1

    def _trace(self, event: tuple[Any, ...]) -> None:
        options = self._context.settings.options
        if self._client.account.name == options.system_account and (
            not options.logging.trace_verbose
        ):
            return
        logging = options.logging
        for line in protocol_trace.inbound(
            event, payload_max=logging.max_traced_msg_len, headers_only=logging.trace_headers
        ):
            logger.log(TRACE, "%s - %s", self._connection.label, line)
