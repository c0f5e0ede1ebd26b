"""Connections that other nodes open to us: who they are, then what they send.

Owns: accepted links, before and after their handshake.
May not touch: our own outgoing links (raft.mesh), what frames mean.
Spec: a connection must finish its handshake in time and within a small frame; whatever else it
does ends that connection and nothing more. A refusal names its reason on both sides. We
accept ourselves: asyncio's server tells nobody of TLS handshakes that fail, and loses the sockets
it has just accepted when it is closed."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from raft.transport.handshake import (
    HELLO,
    NEWS,
    PING,
    PONG,
    REFUSAL,
    WELCOME,
    HandshakeRefused,
    Hello,
    LinkClass,
    News,
    Refusal,
    RefusalCode,
    check_hello,
    frame,
    greeting,
    new_nonce,
    read_hello,
)
from raft.transport.link import LINK_CHANNEL, FrameError, Link
from raft.transport.peer_table import PeerTable
from raft.types import NodeId

_log = logging.getLogger("raft.transport")
_BACKLOG: Final = 128
_ALIVE_QUIET_MAX = 2  # a link that was heard of within this many intervals counts as alive


@dataclass(slots=True)
class _Stranger:
    nonce: bytes
    timer: asyncio.TimerHandle


class Acceptor:
    """`deliver(link, channel, view)` gets the frames of links whose handshake is done;
    `announce()` is called when a node appears that we did not know."""

    def __init__(
        self,
        mesh: PeerTable,
        *,
        deliver: Callable[[Link, int, memoryview], None],
        announce: Callable[[], None],
        tls: ssl.SSLContext | None,
    ) -> None:
        self.links: dict[tuple[NodeId, LinkClass], Link] = {}
        self._mesh = mesh
        self._deliver = deliver
        self._announce = announce
        self._tls = tls
        self._opening: set[socket.socket] = set()  # TLS, if any, is under way
        self._listeners: list[socket.socket] = []
        self._strangers: dict[Link, _Stranger] = {}

    async def listen(self, host: str, port: int) -> int:
        """Begin to accept, on every address of the host; the port. Raises OSError."""
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
        """Accept no more; the port is free."""
        for listener in self._listeners:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        self._listeners.clear()

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:  # no descriptor is left; the next turn tries again
            self._mesh.log_once(f"a connection cannot be accepted: {error}")
            return
        tasks = self._mesh.tasks
        if tasks is None or self._mesh.stopping or self._is_crowded():
            connection.close()
            return
        self._opening.add(connection)
        tasks.create_task(self._open(connection), name="an accepted connection")

    async def _open(self, connection: socket.socket) -> None:
        whom = "a connection"
        link = self._link()
        try:
            connection.settimeout(0)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            whom = f"a connection from {connection.getpeername()[0]}"
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: link,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=self._mesh.limits.connect_seconds if self._tls else None,
            )
        except OSError as error:
            if self._tls is not None:
                self._mesh.tls_failed(whom, error)
            connection.close()
        except asyncio.CancelledError:
            link.forsake()
            raise
        finally:
            self._opening.discard(connection)

    def abort(self) -> None:
        """End every accepted connection at once: they carry nothing of ours."""
        for link in [*self._strangers, *self.links.values()]:
            link.abort()

    def _link(self) -> Link:
        return Link(
            on_frame=self._frame,
            on_lost=self._lost,
            on_made=self._made,
            queue_bytes_max=self._mesh.limits.control_queue_bytes_max,
        )

    def _is_crowded(self) -> bool:
        if len(self._strangers) + len(self._opening) < self._mesh.limits.strangers_max:
            return False
        self._mesh.refused["handshake"] += 1
        return True

    def _made(self, link: Link) -> None:
        self._mesh.link_made(link)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._mesh.limits.connect_seconds, self._late, link)
        nonce = new_nonce()
        self._strangers[link] = _Stranger(nonce, timer)
        link.send(LINK_CHANNEL, greeting(nonce))
        link.flush()  # whoever speaks too early still learns whom he has called
        link.sealed = True

    def _late(self, link: Link) -> None:
        self._mesh.refused["handshake"] += 1
        link.abort(TimeoutError("no handshake in time"))

    def _frame(self, link: Link, channel: int, view: memoryview) -> None:
        stranger = self._strangers.get(link)
        if stranger is not None:
            self._handshake(link, stranger, channel, view)
        elif channel != LINK_CHANNEL:
            self._deliver(link, channel, view)
        elif view[0] == PING:
            link.send(LINK_CHANNEL, bytes((PONG,)))
        elif view[0] == NEWS:
            news = msgspec.json.decode(view[1:], type=News)
            self._mesh.learn_details(link.node, news.hello)
            self._mesh.learn_addresses(news.peers)

    def _handshake(self, link: Link, stranger: _Stranger, channel: int, view: memoryview) -> None:
        mesh = self._mesh
        if channel != LINK_CHANNEL:
            mesh.refused[RefusalCode.MALFORMED.value] += 1
            raise HandshakeRefused(
                RefusalCode.MALFORMED, "a frame before the handshake", by_us=True
            )
        try:
            theirs = read_hello(bytes(view), HELLO)
            check_hello(theirs, ours=mesh.ourselves, our_nonce=stranger.nonce, accepting=True)
            mesh.check_name(theirs, alive=self._is_alive(NodeId(theirs.node)))
        except HandshakeRefused as refused:
            if refused.code is not RefusalCode.OURSELVES:
                mesh.refused[refused.code.value] += 1
                mesh.log_once(f"we refused the server at {link.peer_host}: {refused.reason}")
            link.send(LINK_CHANNEL, frame(REFUSAL, Refusal(refused.code, refused.reason)))
            link.close()
            return
        ours = mesh.ourselves.hello(
            theirs.link, peers=mesh.known(), their_nonce=theirs.nonce, accepting=True
        )
        link.send(LINK_CHANNEL, frame(WELCOME, ours))
        self._admit(link, theirs)

    def _admit(self, link: Link, theirs: Hello) -> None:
        self._strangers.pop(link).timer.cancel()
        node = NodeId(theirs.node)
        link.node, link.link_class = node, theirs.link
        link.frame_bytes_max = self._mesh.limits.frame_bytes_max
        replaced = self.links.get((node, theirs.link))
        self.links[node, theirs.link] = link
        if replaced is not None:
            replaced.abort()
        host = theirs.host or link.peer_host
        is_new = node not in self._mesh.peers
        self._mesh.learn_peer(theirs, host)
        self._mesh.learn_address(node, host, theirs.port, fresh=True)
        self._mesh.learn_addresses(theirs.peers)
        if is_new:
            self._announce()

    def _is_alive(self, node: NodeId) -> bool:
        """Whether the node is heard of on a standing link."""
        links = [self.links.get((node, kind)) for kind in LinkClass]
        return any(
            link is not None and link.open and link.quiet_intervals < _ALIVE_QUIET_MAX
            for link in links
        )

    def _lost(self, link: Link, error: BaseException | None) -> None:
        mesh = self._mesh
        stranger = self._strangers.pop(link, None)
        if stranger is not None:
            stranger.timer.cancel()
            if error is not None:
                mesh.log_once(f"we ended a connection from {link.peer_host}: {error}")
        elif self.links.get((link.node, link.link_class)) is link:
            del self.links[link.node, link.link_class]
            if error is not None:
                level = logging.WARNING if isinstance(error, FrameError) else logging.INFO
                name = mesh.name(link.node)
                _log.log(level, "%s: link from %s lost: %s", mesh.ourselves.name, name, error)
        mesh.link_lost(link, error)
