"""One leaf node connection from connect to close, whichever side dialed.

Owns: the parts of the connection (socket, buffer, timers, operations), its S2 streams, its sink
while the other server is admitted, and which of our subscriptions that server was told about.
May not touch: who may connect (accepted_leaf.py) and what we present to a hub (dialed_leaf.py).
Bounds: the outbound buffer of a client (broker/server/client/outbound.py); subscriptions are
announced and removed STEP per turn of their account; a compressed stream is unpacked one chunk at a
time, and not at all while reading is paused.
Spec: leaf node protocol. A loop is detected when an account's loop subject ($LDS) comes back."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Callable
from itertools import islice
from typing import Protocol

from broker.accounts import GLOBAL_ACCOUNT, Account
from broker.compression.s2 import BadS2
from broker.compression.s2_stream import S2Reader, S2Writer
from broker.config.options import LinkCompression
from broker.server import link_compression
from broker.server.client.client_socket import ClientSocket
from broker.server.client.close_reason import Reason
from broker.server.client.connection_timers import ConnectionTimers
from broker.server.client.outbound import Outbound
from broker.server.client.tls import TlsFailed
from broker.server.leaf.announced_interest import AnnouncedInterest
from broker.server.leaf.leaf_operations import LeafOperations
from broker.server.leaf.leaf_profile import LeafProfile
from broker.server.leaf.leaf_rules import LOOP_PREFIX, LeafRules
from broker.server.leaf.leaf_sink import LeafSink
from broker.server.listeners.framed_transport import FramedTransport
from broker.server.process.log import logger
from broker.subjects import CLUSTER_WIDE, LEAF_LINKS, SinkKind, Subscription

STEP = 100  # subscriptions announced or removed in one turn of the loop
LOOP_PAUSE_S = 30.0  # before reconnecting after a loop was detected


class LeafTable(Protocol):
    """The table of leaf node connections, as one of them sees it."""

    def loop_subject(self, account: str) -> bytes: ...
    def add(self, connection: LeafConnection) -> None:
        """Admitted: from now on `interest_changed` is called for every change."""

    def remove(self, connection: LeafConnection) -> None: ...


class LeafConnection(asyncio.Protocol):
    """Begins as a socket; `admit` makes it part of an account."""

    def __init__(
        self, profile: LeafProfile, table: LeafTable, loop: asyncio.AbstractEventLoop
    ) -> None:
        context = profile.context
        limits = context.settings.options.limits
        self.profile = profile
        self.table = table
        self.loop = loop
        self.cid = context.connections.next_cid()
        self.socket = ClientSocket()
        account = context.account(GLOBAL_ACCOUNT)
        self.outbound = Outbound(loop, self.socket, self, account.unsent, context.flushes)
        self.outbound.set_limits(
            max_pending=limits.max_pending,
            write_deadline_ns=profile.options.write_deadline_ns or limits.write_deadline_ns,
            stall_producers=limits.stall_producers,
        )
        self.queue = self.outbound.queue
        self.timers = ConnectionTimers(self, profile, loop)
        self.operations = LeafOperations(self, profile, self.outbound, self.timers)
        self.sink: LeafSink | None = None
        self.remote_name = ""
        self.remote_version = ""
        self.user = ""  # the user that the other server logged in as
        self.remote_id = ""
        self.remote_account = ""
        self.started = time.time()
        self.compression = ""  # mode of what we send; "" before it is negotiated
        self.framed = False  # over WebSocket: TLS, if any, is handled below it
        self.ws_compressed = False
        self.isolated = profile.options.isolated
        self._begun = time.perf_counter()
        self._packer: S2Writer | None = None
        self._unpacker: S2Reader | None = None
        self.reason: Reason | None = None
        self.on_end: Callable[[LeafConnection], None] | None = None
        self._interest = AnnouncedInterest()
        self._untold: dict[Subscription, None] = {}
        self._spoken: set[Subscription] = set()  # cluster-wide ones that this node announced
        self._reviewed: dict[Subscription, None] = {}  # to announce or withdraw, if cluster-wide

    # -- what each side does ----------------------------------------------------------------

    @abstractmethod
    def received_info(self, text: bytes) -> None: ...

    @abstractmethod
    def received_connect(self, text: bytes) -> None: ...

    @abstractmethod
    def received_error(self, text: str) -> None: ...

    @property
    @abstractmethod
    def wanted_compression(self) -> LinkCompression:
        """What the configuration says for this connection."""

    @abstractmethod
    def begin(self) -> None:
        """The socket is open."""

    def update_info(self) -> None:
        """Send a leaf node the URLs where else it can connect. Nothing is sent to a hub."""

    @abstractmethod
    def secured(self) -> None:
        """The TLS handshake is done."""

    # -- the socket -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.socket.attach(transport, max_pending=self.outbound.max_pending)
        logger.info("%s - Leafnode connection created", self.label)
        self.begin()

    def data_received(self, chunk: bytes) -> None:
        if self.outbound.closed:
            return
        tls = self.socket.tls
        if tls is None:
            self._received(chunk)
            return
        before = tls.established
        try:
            plain = tls.receive(chunk)
        except TlsFailed as failure:
            logger.error("%s - TLS leafnode handshake error: %s", self.label, failure)
            self.socket.write_raw(tls.pending_output())
            self.close(Reason.READ_ERROR if before else Reason.TLS_HANDSHAKE_ERROR)
            return
        self.socket.write_raw(tls.pending_output())
        if tls.established and not before:
            self.timers.handshake_done()
            self.secured()
        if plain and not self.outbound.closed:
            self._received(plain)
        if tls.ended:
            self.close(Reason.CLIENT_CLOSED)

    def _received(self, data: bytes) -> None:
        if self._unpacker is None:
            self.operations.receive(data)
        else:
            self._unpacker.feed(data)
            self._unpack()

    def _unpack(self) -> None:
        unpacker, turns = self._unpacker, self.profile.context.turns
        if unpacker is None:
            return
        try:
            while unpacker.more and not self.socket.reading_pauses and not self.closed:
                began = time.perf_counter()
                data = unpacker.read()
                turns.used(self.account.name, time.perf_counter() - began)
                if data:
                    self.operations.receive(data)
        except BadS2 as error:
            logger.error("%s - read error: s2: %s", self.label, error)
            self.close(Reason.READ_ERROR)

    def peer_ended(self) -> None:
        """A WebSocket close frame was received."""
        self.close(Reason.CLIENT_CLOSED)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(Reason.CLIENT_CLOSED if error is None else Reason.READ_ERROR)
        self.outbound.drop()
        self.socket.transport = None

    def pause_writing(self) -> None:
        self.outbound.pause_writing()

    def resume_writing(self) -> None:
        self.outbound.resume_writing()

    def pause_reading(self) -> None:
        self.socket.pause_reading()

    def resume_reading(self) -> None:
        self.socket.resume_reading()
        if self._unpacker is not None and self._unpacker.more:
            self.loop.call_soon(self._unpack)

    # -- compression ------------------------------------------------------------------------

    def choose_compression(self, theirs: str) -> bool:
        """Choose our mode, given that of the other side. Returns whether both sides send S2 streams
        from now on. Raises UnknownCompression."""
        ours, rtt_s = self.wanted_compression, time.perf_counter() - self._begun
        self.compression = link_compression.chosen(
            ours, "off" if self.ws_compressed else theirs, rtt_s
        )
        return link_compression.wanted(self.compression)

    def start_compression(self) -> None:
        self.outbound.flush()
        self._packer = S2Writer(packed=self.compression != link_compression.UNCOMPRESSED)
        below = self.socket.transport
        if isinstance(below, FramedTransport):
            below.pack(self._packer)
        else:
            self._unpacker = S2Reader()
            self.socket.pack(self._packer)

    def heard_pong(self) -> None:
        """A PONG was received: choose the level of `s2_auto` by the new round trip time."""
        ours = self.wanted_compression
        if self._packer is not None and ours.mode == link_compression.AUTO:
            self.compression = link_compression.level(ours, self.timers.rtt_s)
            self._packer.packed = self.compression != link_compression.UNCOMPRESSED

    # -- the account ------------------------------------------------------------------------

    def enter(
        self, account: Account, *, kind: SinkKind, cluster: str, limits: LeafRules, headers: bool
    ) -> LeafSink:
        """Bind the other server to this account, from now on."""
        self.operations.admitted()
        self.outbound.enter_account(account.unsent)
        self.sink = LeafSink(
            self.cid, account, self.profile.context.router, kind=kind, cluster=cluster,
            outbound=self.outbound, reading=self, limits=limits,
        )  # fmt: skip
        self.sink.headers_ok = headers
        return self.sink

    def tell_interest(self) -> None:
        """Announce all our subscriptions, and from then on every change."""
        sink = self.sink
        assert sink is not None, "admitted before"
        account = sink.account
        self.table.add(self)
        self._tell(self.table.loop_subject(account.name), b"", 1)
        for mapping in account.options.mappings:
            self._tell(mapping.source.encode(), b"", 1)
        self._untold = account.subs.all()
        self._tell_untold()
        self.timers.start_pings()

    def _tell_untold(self) -> None:
        if self.closed:
            return
        for sub in list(islice(self._untold, STEP)):
            del self._untold[sub]
            self._count(sub, sub.weight)
        if self._untold:
            self._later(self._tell_untold)

    def speak(self, *, on: bool) -> None:
        """To a hub: start or stop announcing the cluster-wide subscriptions (streams, JetStream
        API). One node of a cluster does (broker/cluster/peers/hub_speaker.py)."""
        sink = self.sink
        if sink is None or sink.speaks == on or self.closed:
            return
        sink.speaks = on
        self._reviewed = sink.account.subs.all() if on else dict.fromkeys(self._spoken)
        self._review()

    def _review(self) -> None:
        if self.closed:
            return
        for sub in list(islice(self._reviewed, STEP)):
            del self._reviewed[sub]
            if sub.sink.kind in CLUSTER_WIDE and sub not in self._untold:
                self._speak_of(sub)
        if self._reviewed:
            self._later(self._review)

    def _speak_of(self, sub: Subscription) -> None:
        speaks = self.sink is not None and self.sink.speaks
        if speaks == (sub in self._spoken):
            return
        if speaks:
            self._spoken.add(sub)
        else:
            self._spoken.discard(sub)
        self._tell(sub.subject, sub.queue, 1 if speaks else -1)

    def interest_changed(self, sub: Subscription, members: int) -> None:
        """A subscription of the account was added or removed, or its weight has changed; `members`
        is the difference."""
        if members < 0:
            self._reviewed.pop(sub, None)
        if sub in self._untold:
            if members == -sub.weight:
                del self._untold[sub]
            return
        self._count(sub, members)

    def _count(self, sub: Subscription, members: int) -> None:
        ours = self.sink
        if ours is not None and ours.kind is SinkKind.HUB and sub.sink.kind in CLUSTER_WIDE:
            if members > 0:
                self._speak_of(sub)
            elif sub in self._spoken:
                self._spoken.discard(sub)
                self._tell(sub.subject, sub.queue, members)
        elif self._concerns_them(sub):
            self._tell(sub.subject, sub.queue, members)

    def _tell(self, subject: bytes, queue: bytes, members: int) -> None:
        sink = self.sink
        if sink is None:
            return
        if not subject.startswith(LOOP_PREFIX) and not sink.limits.may_announce(subject):
            return
        line = self._interest.change(subject, queue, members)
        if line:
            self.queue(line)

    def _concerns_them(self, sub: Subscription) -> bool:
        """Whether to announce it. A leaf node is told of all subscriptions but its own and those of
        its cluster; a hub only of those of clients and leaf nodes connected to this node."""
        ours, sink = self.sink, sub.sink
        if ours is None or sink is ours or (self.isolated and sink.kind in LEAF_LINKS):
            return False
        if ours.kind is SinkKind.HUB:
            near = sink.kind is not SinkKind.ROUTE and sink.kind is not SinkKind.HUB
            return near or sub.subject.startswith(LOOP_PREFIX)
        return not (
            isinstance(sink, LeafSink)
            and sink.kind is SinkKind.LEAF
            and bool(ours.cluster)
            and sink.cluster == ours.cluster
        )

    def received_subscription(self, subject: bytes, queue: bytes, weight: int) -> None:
        sink = self.sink
        assert sink is not None, "checked before"
        if subject == self.table.loop_subject(sink.account.name):
            self.loop_found()
        elif not sink.limits.may_ask_for(subject):
            shown = subject.decode(errors="backslashreplace")
            logger.error("%s - Subscription Violation on %r", self.label, shown)
            text = f'Permissions Violation for Subscription to "{shown}"'
            self.fail(text, Reason.PROTOCOL_VIOLATION)
        elif not self._has_room(sink) or not sink.subscribe(subject, queue, weight):
            self.error("Invalid Subscription")

    def _has_room(self, sink: LeafSink) -> bool:
        most = self.profile.server_options.limits.max_subscriptions
        return most <= 0 or len(sink.subs) < most

    def refused_message(self, subject: bytes) -> None:
        shown = subject.decode(errors="backslashreplace")
        logger.error("%s - Publish Violation on %r", self.label, shown)
        self.fail(f'Permissions Violation for Publish to "{shown}"', Reason.PROTOCOL_VIOLATION)

    def loop_found(self) -> None:
        sink = self.sink
        name = "" if sink is None else sink.account.name
        text = (
            f'Loop detected for leafnode account="{name}". '
            f"Delaying attempt to reconnect for {LOOP_PAUSE_S:.0f}s"
        )
        logger.error("%s - %s", self.label, text)
        self.fail(text, Reason.PROTOCOL_VIOLATION)

    # -- the end ----------------------------------------------------------------------------

    def error(self, text: str) -> None:
        self.queue(b"-ERR '" + text.encode() + b"'\r\n")

    def fail(self, text: str, reason: Reason) -> None:
        self.error(text)
        self.close(reason)

    def close(self, reason: Reason) -> None:
        """Flush the queue, then close; the other side has the write deadline to read it."""
        if self.closed:
            return
        if self.sink is not None:
            self.sink.flush()
        self.outbound.flush()
        self._end(reason)
        if self.socket.transport is not None:
            if self.outbound.chunk_count:
                self.outbound.drop()
            self.socket.close()
            self.outbound.start_deadline()

    def abort(self, reason: Reason) -> None:
        if self.closed:
            return
        self._end(reason)
        self.outbound.drop()
        self.socket.abort()

    def _end(self, reason: Reason) -> None:
        if self.closed:
            return
        self.reason = reason
        self.outbound.closed = True
        self.timers.stop()
        self._untold.clear()
        self._reviewed.clear()
        named = f" - Remote: {self.remote_name}" if self.remote_name else ""
        logger.info("%s - Leafnode connection closed: %s%s", self.label, reason.value, named)
        self.table.remove(self)
        self._leave()
        if self.on_end is not None:
            self.on_end(self)

    def _leave(self) -> None:
        """Remove its subscriptions, a bounded number per turn of the loop."""
        sink = self.sink
        if sink is None:
            return
        for subject, queue in list(islice(sink.subs, STEP)):
            sink.unsubscribe(subject, queue)
        if sink.subs:
            self._later(self._leave)

    def _later(self, act: Callable[[], None]) -> None:
        """Call `act` in a turn of the account, so that a hundred of its connections take no more
        of the loop than one."""
        assert self.sink is not None, "admitted before"
        self.profile.context.turns.wait(act, self.sink.account.name, self.cid)

    def queue_overflow(self) -> None:
        logger.info("%s - Slow Consumer Detected: MaxPending Exceeded", self.label)
        self.profile.context.connections.counters.slow_consumers += 1
        self.abort(Reason.SLOW_CONSUMER_PENDING)

    def write_too_slow(self) -> None:
        if self.closed:
            self.socket.abort()
            return
        logger.info("%s - Slow Consumer Detected: WriteDeadline exceeded", self.label)
        self.profile.context.connections.counters.slow_consumers += 1
        self.abort(Reason.SLOW_CONSUMER_DEADLINE)

    # -- what the parts and the monitor ask ---------------------------------------------------

    @property
    def closed(self) -> bool:
        return self.outbound.closed

    @property
    def host(self) -> str:
        return self.socket.host

    @property
    def label(self) -> str:
        return f"{self.socket.host}:{self.socket.port} - lid:{self.cid}"

    @property
    def account(self) -> Account:
        sink = self.sink
        return self.profile.context.account(GLOBAL_ACCOUNT) if sink is None else sink.account

    @property
    def authorized(self) -> bool:
        return self.sink is not None

    @property
    def connect_received(self) -> bool:
        return self.sink is not None

    @property
    def pingable(self) -> bool:
        return self.sink is not None

    @property
    def rtt_s(self) -> float:
        return self.timers.rtt_s

    def clear_info(self) -> None:
        """Not used: leaf nodes have no handshake_first with a fallback."""
