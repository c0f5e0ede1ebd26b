"""One client connection: its parts, its greeting, and how it is closed.

Owns: the parts of one connection (socket, outbound buffer, timers, login, operations, the sink
that the router knows) and their lifetime from accept to close.
May not touch: what the parts do; other connections.
Spec: NATS client protocol, INFO and TLS; nats-server's slow consumers and closed states."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice

from broker.accounts import GLOBAL_ACCOUNT, Account
from broker.accounts.identity import Credentials, Identity
from broker.config.options import Limits
from broker.credentials.certificates import user_names
from broker.server.client import protocol_trace
from broker.server.client.client_sink import ClientSink
from broker.server.client.client_socket import ClientSocket
from broker.server.client.close_reason import Reason
from broker.server.client.connect_options import ConnectOptions
from broker.server.client.connection_timers import ConnectionTimers
from broker.server.client.listener_profile import ListenerProfile
from broker.server.client.login import ClientLogin
from broker.server.client.operations import Operations
from broker.server.client.outbound import Outbound
from broker.server.client.tls import HANDSHAKE_RECORD, TlsFailed, TlsLayer, session_document
from broker.server.process.log import TRACE, logger
from broker.server.process.printable import quoted
from broker.server.services import Document
from broker.subjects import PublishRules, Subscription
from broker.wire import ClientParser

LEAVING_AT_ONCE = 200  # subscriptions of a closed client that are removed in one turn
NOTHING_BROUGHT = Credentials()
OPEN_BEFORE_PING_SECONDS = 2.0


class Connection(asyncio.Protocol):
    """A client from accept to close. A listener creates one for every socket."""

    def __init__(
        self,
        profile: ListenerProfile,
        loop: asyncio.AbstractEventLoop,
        brought: Credentials = NOTHING_BROUGHT,
    ) -> None:
        context = profile.context
        limits = context.settings.options.limits
        self._loop = loop
        self._profile = profile
        self._context = context
        self._cid = context.connections.next_cid()
        self.socket = ClientSocket()
        account = context.account(GLOBAL_ACCOUNT)
        self.outbound = Outbound(loop, self.socket, self, account.unsent, context.flushes)
        self.outbound.set_limits(
            max_pending=limits.max_pending,
            write_deadline_ns=limits.write_deadline_ns,
            stall_producers=limits.stall_producers,
        )
        self.client = ClientSink(
            self._cid,
            account,
            context.router,
            outbound=self.outbound,
            socket=self.socket,
            error=self.error,
        )
        self.queue = self.outbound.queue
        if logger.isEnabledFor(TRACE):
            self.queue = self.client.queue = self._queue_traced
            self.client.watchful = True
        self.timers = ConnectionTimers(self, profile, loop)
        parser = ClientParser(
            max_control_line=limits.max_control_line, max_payload=limits.max_payload
        )
        self.login = ClientLogin(
            self, profile, self.client, self.timers,
            brought=brought, parser=parser,
        )  # fmt: skip
        self.operations = Operations(
            self,
            profile,
            self.client,
            outbound=self.outbound,
            timers=self.timers,
            login=self.login,
            parser=parser,
        )
        self._receive = self.operations.receive
        self.started = time.time()
        self._opened = loop.time()
        self._last_data = self._opened  # loop time of the last bytes from the client
        self._first_byte_decides = False  # whether the client speaks TLS
        self._info_sent = False
        self._first_pong_sent = False
        self.reason: Reason | None = None

    # -- the socket -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.socket.attach(transport, max_pending=self.outbound.max_pending)
        self._context.connections.add(self)

    def greet(self) -> None:
        """Send INFO; with handshake_first, wait for TLS before that."""
        if self._profile.tls is None:
            self._send_first_info()
            self.timers.await_connect()
            return
        tls, context = self._profile.tls
        if tls.handshake_first:
            self.socket.start_tls(context)
            if tls.handshake_fallback_ns:
                self.timers.await_first_bytes(tls.handshake_fallback_ns / 1e9)
        else:
            self._send_first_info()
            self._first_byte_decides = self._context.settings.options.allow_non_tls
            if not self._first_byte_decides:
                self.socket.start_tls(context)
        self.timers.await_handshake(tls.timeout_ns / 1e9)

    def _send_first_info(self) -> None:
        self._info_sent = True
        self.queue(
            self._profile.info_line(
                cid=self._cid,
                host=self.host,
                payload_max=self.login.payload_max,
                nonce=self.login.nonce,
            )
        )
        self.outbound.flush()

    def clear_info(self) -> None:
        """Fallback of handshake_first: the client started no handshake, so send INFO in clear."""
        if not self._info_sent and not self.closed:
            self._send_first_info()

    def data_received(self, chunk: bytes) -> None:
        if self.outbound.closed:
            return
        self._last_data = self._loop.time()
        if self._first_byte_decides:
            self._decide_by_first_byte(chunk)
        tls = self.socket.tls
        if tls is None:
            if chunk:
                self._receive(chunk)
            return
        chunk = self._decrypt(tls, chunk)
        if chunk:
            self._receive(chunk)
        if tls.ended:
            self.peer_ended()

    def _decide_by_first_byte(self, chunk: bytes) -> None:
        self._first_byte_decides = False
        context = self._context.settings.tls_context
        if chunk[0] == HANDSHAKE_RECORD and context is not None:
            self.socket.start_tls(context)
        else:
            self.timers.handshake_done()
            self.timers.await_connect()

    def _decrypt(self, tls: TlsLayer, chunk: bytes) -> bytes:
        before = tls.established
        self.timers.first_bytes_seen()
        try:
            plain = tls.receive(chunk)
        except TlsFailed as failure:
            level_log = logger.debug if before else logger.error
            level_log("%s - TLS handshake error: %s", self.label, failure)
            self.socket.write_raw(tls.pending_output())
            self.close(Reason.TLS_HANDSHAKE_ERROR if not before else Reason.READ_ERROR)
            return b""
        self.socket.write_raw(tls.pending_output())
        if tls.established and not before:
            self.timers.handshake_done()
            if not self._info_sent:
                self._send_first_info()
            self.timers.await_connect()
        return plain

    def peer_ended(self) -> None:
        """The client has closed its sending side."""
        self.operations.peer_ended()

    def connection_lost(self, error: Exception | None) -> None:
        reason = Reason.CLIENT_CLOSED if error is None else Reason.READ_ERROR
        if not self.closed:
            self._begin_close(self.reason or reason)
        self.outbound.drop()
        self.socket.transport = None

    def pause_writing(self) -> None:
        self.outbound.pause_writing()

    def resume_writing(self) -> None:
        self.outbound.resume_writing()

    # -- answers ----------------------------------------------------------------------------

    def error(self, text: str) -> None:
        """Send -ERR; the connection stays."""
        logger.debug("%s - %s", self.label, text)
        self.queue(b"-ERR '" + text.encode() + b"'\r\n")

    def fail(self, text: str, reason: Reason) -> None:
        """Send -ERR, then close once it has left."""
        self.queue(b"-ERR '" + text.encode() + b"'\r\n")
        self.close(reason)

    def first_pong(self) -> None:
        """PONG was sent after CONNECT: the client is ready for a second INFO."""
        if not self._first_pong_sent:
            self._first_pong_sent = True
            if self.connect.protocol >= 1:
                self.queue(
                    self._profile.info_line(
                        cid=self._cid,
                        host=self.host,
                        payload_max=self.login.payload_max,
                        account=self.account.name,
                    )
                )

    def send_info(self, *, ldm: bool = False) -> None:
        payload_max = self.login.payload_max
        self.queue(
            self._profile.info_line(cid=self._cid, host=self.host, payload_max=payload_max, ldm=ldm)
        )

    def update_info(self, *, ldm: bool = False) -> None:
        """Send INFO again, if the client's protocol version allows more than one."""
        if self.connect.protocol >= 1 and self._first_pong_sent:
            self.send_info(ldm=ldm)

    def flush(self) -> None:
        self.outbound.flush()

    async def drained(self) -> None:
        await self.outbound.drained()

    def _queue_traced(self, data: bytes | memoryview) -> None:
        if not self.closed:
            logger.log(TRACE, "%s - %s", self.label, protocol_trace.outbound(bytes(data)))
        self.outbound.queue(data)

    def tls_document(self) -> Document | None:
        session = self.socket.tls_session()
        return None if session is None else session_document(session)

    def certificate_names(self) -> tuple[str, ...]:
        session = self.socket.tls_session()
        return () if session is None else user_names(session.getpeercert() or {})

    async def run_in_thread(self, identify: Callable[[], Identity | None]) -> Identity | None:
        passwords = self._profile.context.passwords
        return await passwords.check(self.host, identify, wanted=lambda: not self.closed)

    # -- the end ----------------------------------------------------------------------------

    def close(self, reason: Reason) -> None:
        """Flush the queue, then close. A client that does not read is closed after the write
        deadline."""
        if self.closed:
            return
        self.outbound.flush()
        self._begin_close(reason)
        if self.socket.transport is not None:
            if self.outbound.chunk_count:  # the transport is full: only what it has can leave
                self.outbound.drop()
            self.socket.close()
            self.outbound.start_deadline()

    def leave(self, reason: Reason) -> None:
        """Ask the client to reconnect elsewhere: half-close the socket behind what was sent so
        far. Until the client closes its side, operations it had already sent are still carried
        out. Its subscriptions end now; it subscribes again where it reconnects."""
        if self.closed:
            return
        self.outbound.flush()
        if self.outbound.chunk_count or not self.socket.half_close():
            self.close(reason)
            return
        self.reason = reason
        self.outbound.end()
        self.timers.stop()
        self._leave(self._leaving())

    def abort(self, reason: Reason) -> None:
        """Close now, dropping what is queued."""
        if self.closed:
            return
        self._begin_close(reason)
        self.outbound.drop()
        self.socket.abort()

    def _begin_close(self, reason: Reason) -> None:
        self.reason = reason
        self.outbound.closed = True
        self.timers.stop()
        self._context.connections.remove(self)
        # Until it is removed from the tables, a closed subscription refuses messages, and its
        # queue group tries the next member.
        self._leave(self._leaving())

    def _leaving(self) -> Iterator[Subscription]:
        """All subscriptions, queue group members first. Two passes instead of a sort: there may
        be 100,000 of them."""
        subs = list(self.subs.values())
        yield from [sub for sub in subs if sub.queue]
        yield from (sub for sub in subs if not sub.queue)

    def _leave(self, subs: Iterator[Subscription]) -> None:
        """Remove subscriptions from the tables, a bounded number per turn of the account, so that
        many closing clients take no more of the loop than one."""
        for sub in islice(subs, LEAVING_AT_ONCE):
            self.client.drop_subscription(sub)
        if self.subs:
            account = self.client.account.name
            self._context.turns.wait(partial(self._leave, subs), account, self.cid)

    def queue_overflow(self) -> None:
        logger.info(
            "%s - Slow Consumer Detected: MaxPending of %d Exceeded",
            self.label,
            self.outbound.max_pending,
        )
        self._context.connections.counters.slow_consumers += 1
        self.abort(Reason.SLOW_CONSUMER_PENDING)

    def write_too_slow(self) -> None:
        if self.closed:
            self.socket.abort()
            return
        logger.info(
            "%s - Slow Consumer Detected: WriteDeadline of %gs exceeded with %d chunks of %d "
            "total bytes.",
            self.label,
            self.outbound.write_deadline_s,
            self.outbound.chunk_count + 1,
            self.pending_bytes,
        )
        self._context.connections.counters.slow_consumers += 1
        self.abort(Reason.SLOW_CONSUMER_DEADLINE)

    # -- what the parts, the monitor and the cluster ask --------------------------------------

    @property
    def cid(self) -> int:
        return self._cid

    @property
    def kind(self) -> str:
        return self._profile.kind

    @property
    def internal(self) -> bool:
        return self._profile.internal

    @property
    def label(self) -> str:
        """The beginning of log lines about this client."""
        options = self.connect
        about = ":".join(part for part in (options.version, options.lang, options.name) if part)
        shown = f" - {quoted('v' + about)}" if about else ""
        via = f"{self.socket.forwarded_for}/" if self.socket.forwarded_for else ""
        return f"{via}{self.host}:{self.port} - {self._profile.mark}:{self._cid}{shown}"

    @property
    def host(self) -> str:
        return self.socket.host

    @property
    def port(self) -> int:
        return self.socket.port

    @property
    def closed(self) -> bool:
        return self.outbound.closed

    @property
    def account(self) -> Account:
        return self.client.account

    @property
    def rules(self) -> PublishRules | None:
        return self.client.rules

    def refuse_publish(self, subject: bytes) -> None:
        self.client.refuse_publish(subject)

    @property
    def identity(self) -> Identity:
        return self.login.identity

    @property
    def connect(self) -> ConnectOptions:
        return self.login.connect

    @property
    def authorized(self) -> bool:
        return self.login.authorized

    @property
    def connect_received(self) -> bool:
        return self.login.connect_received

    @property
    def admitted(self) -> bool:
        return self.login.admitted

    @property
    def subs(self) -> Mapping[bytes, Subscription]:
        return self.client.subs

    @property
    def rtt_s(self) -> float:
        return self.timers.rtt_s

    @property
    def idle_s(self) -> float:
        return self._loop.time() - self._last_data

    @property
    def pending_bytes(self) -> int:
        return self.outbound.pending_bytes

    @property
    def stalls(self) -> int:
        return self.outbound.stalls

    @property
    def pingable(self) -> bool:
        """Whether we may send PING now: not in the middle of a bulk read, and not before the first
        PONG was sent, unless the connection is older than OPEN_BEFORE_PING_SECONDS."""
        if self.operations.scans:
            return False
        age = self._loop.time() - self._opened
        return self._first_pong_sent or age > OPEN_BEFORE_PING_SECONDS

    def tls_description(self) -> tuple[str, str] | None:
        return self.socket.tls_description()

    def pause_reading(self) -> None:
        self.socket.pause_reading()

    def resume_reading(self) -> None:
        self.socket.resume_reading()

    def admitted_now(self) -> None:
        self._context.connections.admitted(self)

    def apply_limits(self, limits: Limits) -> None:
        """Apply the limits that a reload may change for open connections."""
        self.outbound.set_limits(
            max_pending=limits.max_pending,
            write_deadline_ns=limits.write_deadline_ns,
            stall_producers=limits.stall_producers,
        )

    def reauthenticate(self) -> None:
        """Check the user again: the configuration has changed."""
        if self.login.connect_received or self.login.authorized:
            self.login.reauthenticate()
