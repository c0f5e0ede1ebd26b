"""Connections that other nodes open to us: their handshake, then the frames they send.

Owns: the listening sockets, accepted links before and after their handshake.
May not touch: our own outgoing links (raft/transport/peer_table.py), what frames mean.
Spec: a connection must finish its handshake in time and in small frames. Anything else closes that
connection and no other. A refusal is logged with its reason on both sides. asyncio's server is not
used: it does not report failed TLS handshakes, and when it is closed it leaks the sockets that it
has just accepted."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from raft.transport.frame_guard import Checksums, FrameError
from raft.transport.handshake import (
    ANSWER,
    HELLO,
    NEWS,
    PING,
    PONG,
    REFUSAL,
    WELCOME,
    Address,
    Answer,
    HandshakeRefused,
    Hello,
    LinkClass,
    News,
    Nonces,
    PeerVersions,
    Refusal,
    RefusalCode,
    check_hello,
    check_wanted,
    frame,
    greeting,
    new_nonce,
    read_challenge,
    read_hello,
)
from raft.transport.handshake_slots import HandshakeSlots, source_of
from raft.transport.limits import TransportLimits
from raft.transport.link import HANDSHAKE_FRAME_MAX, LINK_CHANNEL, Link
from raft.transport.open_links import OpenLinks
from raft.transport.peer_table import PeerTable
from raft.transport.refusals import Refusals
from raft.types import NodeId

_log = logging.getLogger("raft.transport")
_BACKLOG: Final = 128
_ALIVE_QUIET_MAX: Final = 2  # a link with traffic within this many intervals is alive


@dataclass(slots=True)
class _PendingHandshake:
    nonce: bytes
    timer: asyncio.TimerHandle
    proved: LinkClass | None = None  # set once its proof is verified: the class it asked for


class AddressLearner(Protocol):
    """The dial plan, as far as the acceptor uses it."""

    def learn_address(self, node: NodeId, host: str, port: int, *, fresh: bool) -> None: ...

    def learn_addresses(self, known: list[Address]) -> None: ...


class Acceptor:
    """`deliver(link, channel, view)` gets the frames of links whose handshake is done;
    `announce()` is called when a node appears that we did not know."""

    def __init__(
        self,
        *,
        peers: PeerTable,
        addresses: AddressLearner,
        open_links: OpenLinks,
        refusals: Refusals,
        limits: TransportLimits,
        deliver: Callable[[Link, int, memoryview], None],
        announce: Callable[[], None],
        tls: ssl.SSLContext | None,
    ) -> None:
        self.links: dict[tuple[NodeId, LinkClass], Link] = {}
        self.tasks: asyncio.TaskGroup | None = None  # None: new connections are closed
        self._peers = peers
        self._addresses = addresses
        self._open_links = open_links
        self._refusals = refusals
        self._limits = limits
        self._deliver = deliver
        self._announce = announce
        self._tls = tls
        # Accepted, with the TLS handshake (if any) in progress.
        self._opening: dict[Link, asyncio.Task[None]] = {}
        self._slots: HandshakeSlots[Link] = HandshakeSlots(
            pool_max=limits.handshakes_max, source_max=limits.handshakes_per_source_max
        )
        self._listeners: list[socket.socket] = []
        self._pending: dict[Link, _PendingHandshake] = {}

    async def listen(self, host: str, port: int) -> int:
        """Start to accept on every address of the host. Returns the port. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                listener = socket.create_server((address[0], port), family=family, backlog=_BACKLOG)
                self._listeners.append(listener)
                port = port or int(listener.getsockname()[1])  # the same for all
        except OSError:
            self.close()
            raise
        for listener in self._listeners:
            listener.settimeout(0)
            loop.add_reader(listener, self._accept, listener)
        return port

    def close(self) -> None:
        """Stop accepting; the port is free afterwards."""
        for listener in self._listeners:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        self._listeners.clear()

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, address = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:  # out of file descriptors; retried in the next turn of the loop
            self._refusals.log_once(f"cannot accept a connection: {error}")
            return
        tasks = self.tasks
        if tasks is None:
            connection.close()
            return
        link = self._link()
        source = source_of(str(address[0]))
        evicted = self._slots.enter(link, source, known=self._peers.is_known_source(source))
        if evicted is not None:
            self._evict(evicted)
        self._opening[link] = tasks.create_task(
            self._open(link, connection, str(address[0])), name="an accepted connection"
        )

    def _evict(self, link: Link) -> None:
        """Close a connection with an unfinished handshake: a newer one takes its slot."""
        self._refusals.count("handshake")
        opening = self._opening.get(link)
        if opening is not None:
            opening.cancel()
        link.abort(TimeoutError("its slot was taken by a newer connection"))

    async def _open(self, link: Link, connection: socket.socket, peer: str) -> None:
        try:
            connection.settimeout(0)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: link,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=self._limits.connect_seconds if self._tls else None,
            )
        except OSError as error:
            if self._tls is not None:
                self._refusals.tls_failed(peer, error)
            self._slots.leave(link)
            connection.close()
        except asyncio.CancelledError:
            self._slots.leave(link)
            link.abandon()
            connection.close()
            raise
        finally:
            self._opening.pop(link, None)

    def abort(self) -> None:
        """Close every accepted connection without flushing: nothing queued on them matters."""
        for link in [*self._pending, *self.links.values()]:
            link.abort()

    def _link(self) -> Link:
        return Link(
            on_frame=self._frame,
            on_lost=self._lost,
            on_made=self._made,
            queue_bytes_max=self._limits.control_queue_bytes_max,
        )

    def _made(self, link: Link) -> None:
        self._open_links.made(link)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._limits.connect_seconds, self._late, link)
        nonce = new_nonce()
        self._pending[link] = _PendingHandshake(nonce, timer)
        link.send(LINK_CHANNEL, greeting(nonce, self._peers.ourselves.versions))
        link.flush()  # a client that sends too early still gets the greeting
        link.protect(Checksums())

    def _late(self, link: Link) -> None:
        self._refusals.count("handshake")
        link.abort(TimeoutError("the handshake took too long"))

    def _frame(self, link: Link, channel: int, view: memoryview) -> None:
        pending = self._pending.get(link)
        if pending is not None:
            self._handshake(link, pending, channel, view)
        elif channel != LINK_CHANNEL:
            self._deliver(link, channel, view)
        elif view[0] == PING:
            link.send(LINK_CHANNEL, bytes((PONG,)))
        elif view[0] == NEWS:
            news = msgspec.json.decode(view[1:], type=News)
            self._peers.learn_details(link.node, news.hello)
            self._addresses.learn_addresses(news.peers)

    def _handshake(
        self, link: Link, pending: _PendingHandshake, channel: int, view: memoryview
    ) -> None:
        if channel != LINK_CHANNEL:
            self._refusals.count(RefusalCode.MALFORMED.value)
            raise HandshakeRefused(
                RefusalCode.MALFORMED, "it sent a frame before the handshake", by_us=True
            )
        try:
            if pending.proved is None:
                self._answer(link, pending, bytes(view))
            else:
                self._welcome(link, pending.proved, bytes(view))
        except HandshakeRefused as refused:
            if refused.code is not RefusalCode.OURSELVES:
                self._refusals.count(refused.code.value)
                self._refusals.log_once(
                    f"we refused the server at {link.peer_host}: {refused.reason}"
                )
            link.send(LINK_CHANNEL, frame(REFUSAL, Refusal(refused.code, refused.reason)))
            link.close()

    def _answer(self, link: Link, pending: _PendingHandshake, payload: bytes) -> None:
        """The first frame: the peer's proof of the password, which we answer with ours."""
        ourselves = self._peers.ourselves
        challenge = read_challenge(payload)
        nonces = Nonces(pending.nonce, challenge.nonce, challenge.link)
        link.version = ourselves.versions.agree(PeerVersions(challenge.oldest, challenge.newest))
        ourselves.check_proof(challenge.proof, nonces, accepting=False)
        pending.proved = challenge.link
        answer = Answer(ourselves.proof(nonces, accepting=True), link.version)
        link.send(LINK_CHANNEL, frame(ANSWER, answer))
        link.protect(ourselves.guard(nonces, accepting=True))
        link.frame_bytes_max = HANDSHAKE_FRAME_MAX

    def _welcome(self, link: Link, proved: LinkClass, payload: bytes) -> None:
        """The second frame: the peer's hello."""
        peers = self._peers
        theirs = read_hello(payload, HELLO)
        check_hello(theirs, link.version, ours=peers.ourselves)
        if theirs.link is not proved:
            raise HandshakeRefused(RefusalCode.MALFORMED, "it changed the link", by_us=True)
        peers.check_name(theirs, alive=self._is_alive)
        ours = peers.ourselves.hello(theirs.link, link.version, peers=peers.known())
        link.send(LINK_CHANNEL, frame(WELCOME, ours))
        check_wanted(theirs, ours=peers.ourselves)
        self._admit(link, theirs)

    def _admit(self, link: Link, theirs: Hello) -> None:
        self._pending.pop(link).timer.cancel()
        self._slots.leave(link)
        node = NodeId(theirs.node)
        self._peers.learn_source(node, source_of(link.peer_host))
        link.node, link.link_class = node, theirs.link
        link.frame_bytes_max = self._limits.frame_bytes_max
        replaced = self.links.get((node, theirs.link))
        self.links[node, theirs.link] = link
        if replaced is not None:
            replaced.abort()
        host = theirs.host or link.peer_host
        is_new = node not in self._peers.peers
        self._peers.learn_peer(theirs, host)
        self._addresses.learn_address(node, host, theirs.port, fresh=True)
        self._addresses.learn_addresses(theirs.peers)
        if is_new:
            self._announce()

    def _is_alive(self, node: NodeId) -> bool:
        """Whether an open link of the node had traffic recently."""
        links = [self.links.get((node, kind)) for kind in LinkClass]
        return any(
            link is not None and link.open and link.quiet_intervals < _ALIVE_QUIET_MAX
            for link in links
        )

    def _lost(self, link: Link, error: BaseException | None) -> None:
        pending = self._pending.pop(link, None)
        if pending is not None:
            pending.timer.cancel()
            self._slots.leave(link)
            if error is not None:
                self._refusals.log_once(f"connection from {link.peer_host} closed: {error}")
        elif self.links.get((link.node, link.link_class)) is link:
            del self.links[link.node, link.link_class]
            if error is not None:
                level = logging.WARNING if isinstance(error, FrameError) else logging.INFO
                ours, theirs = self._peers.ourselves.name, self._peers.name(link.node)
                _log.log(level, "%s: link from %s lost: %s", ours, theirs, error)
        self._open_links.lost(link, error)
