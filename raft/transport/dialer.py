"""One address that we dial, and the two links to the node that we reach there.

Owns: connecting, our side of the handshake, the retry delay of one address.
May not touch: accepted connections; which dialer may hold a node's links (the dial plan decides).
Spec: control link first, then bulk, to the same node; losing either closes both. Retries start
immediately and back off to a second, so that nodes that start together connect quickly."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from typing import Protocol

from raft.transport.frame_guard import Checksums
from raft.transport.handshake import (
    CHALLENGE,
    HELLO,
    WELCOME,
    Challenge,
    HandshakeRefused,
    Hello,
    LinkClass,
    Nonces,
    PeerVersions,
    RefusalCode,
    check_hello,
    check_wanted,
    frame,
    new_nonce,
    read_answer,
    read_greeting,
    read_hello,
)
from raft.transport.handshake_slots import source_of
from raft.transport.limits import TransportLimits
from raft.transport.link import HANDSHAKE_FRAME_MAX, LINK_CHANNEL, Link
from raft.transport.open_links import OpenLinks
from raft.transport.peer_table import Peer, PeerTable
from raft.transport.refusals import Refusals
from raft.types import NodeId

_log = logging.getLogger("raft.transport")


class DialOwner(Protocol):
    """The dial plan, as a dialer sees it."""

    def claim(self, dialer: Dialer, theirs: Hello) -> bool: ...

    def found_ourselves(self, dialer: Dialer) -> None: ...

    def ended(self, dialer: Dialer) -> None: ...


class _DialedConnection:
    """First a handshake, then a link that is up until it is lost."""

    def __init__(
        self,
        kind: LinkClass,
        *,
        peers: PeerTable,
        open_links: OpenLinks,
        limits: TransportLimits,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.welcomed: asyncio.Future[Hello] = loop.create_future()
        self.lost: asyncio.Future[BaseException | None] = loop.create_future()
        self._kind = kind
        self._peers = peers
        self._open_links = open_links
        self._nonces: Nonces | None = None  # once we have seen the greeting
        self._proved = False  # the other side has proved that it knows the password
        control = kind is LinkClass.CONTROL
        self.link = Link(
            on_frame=self._frame,
            on_lost=self._lost,
            on_made=open_links.made,
            queue_bytes_max=(
                limits.control_queue_bytes_max if control else limits.bulk_queue_bytes_max
            ),
        )

    def _frame(self, link: Link, channel: int, view: memoryview) -> None:
        if channel != LINK_CHANNEL:
            raise HandshakeRefused(
                RefusalCode.MALFORMED, "it sent a frame on a link that only we write to", by_us=True
            )
        if self.welcomed.done():
            if link.pinged_at:  # a pong
                link.rtt_s, link.pinged_at = time.monotonic() - link.pinged_at, 0.0
            return
        if self._nonces is None:
            self._challenge(link, bytes(view))
        elif not self._proved:
            self._introduce(link, self._nonces, bytes(view))
        else:
            theirs = read_hello(bytes(view), WELCOME)
            check_hello(theirs, link.version, ours=self._peers.ourselves)
            check_wanted(theirs, ours=self._peers.ourselves)
            link.node, link.link_class = NodeId(theirs.node), self._kind
            self.welcomed.set_result(theirs)

    def _challenge(self, link: Link, payload: bytes) -> None:
        nonce, kind = new_nonce(), self._kind
        ourselves = self._peers.ourselves
        versions = ourselves.versions
        self._nonces = Nonces(read_greeting(payload, versions), nonce, kind)
        proof = ourselves.proof(self._nonces, accepting=False)
        link.protect(Checksums())
        challenge = Challenge(kind, nonce, proof, versions.oldest, versions.newest)
        link.send(LINK_CHANNEL, frame(CHALLENGE, challenge))

    def _introduce(self, link: Link, nonces: Nonces, payload: bytes) -> None:
        ourselves = self._peers.ourselves
        answer = read_answer(payload)
        ourselves.check_proof(answer.proof, nonces, accepting=True)
        link.version = ourselves.versions.agree(PeerVersions(answer.version, answer.version))
        self._proved = True
        link.protect(ourselves.guard(nonces, accepting=False))
        link.frame_bytes_max = HANDSHAKE_FRAME_MAX
        hello = ourselves.hello(self._kind, link.version, peers=self._peers.known())
        link.send(LINK_CHANNEL, frame(HELLO, hello))

    def _lost(self, link: Link, error: BaseException | None) -> None:
        if not self.welcomed.done():
            self.welcomed.set_exception(error or ConnectionError("closed during the handshake"))
            self.welcomed.exception()  # mark as retrieved: a stopped dialer does not await it
        if not self.lost.done():
            self.lost.set_result(error)
        self._open_links.lost(link, error)


class Dialer:
    """`run` is a task of the transport. It ends when the address is our own, or when another
    dialer holds the links to its node."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        plan: DialOwner,
        peers: PeerTable,
        open_links: OpenLinks,
        refusals: Refusals,
        limits: TransportLimits,
        tls: ssl.SSLContext | None,
    ) -> None:
        self.address = address
        self.failure = ""  # why the last attempt failed; empty if it did not
        self.reached = False  # the handshake of the control link is done, the node is claimed
        self.task: asyncio.Task[None] | None = None
        self._plan = plan
        self._peers = peers
        self._open_links = open_links
        self._refusals = refusals
        self._limits = limits
        self._tls = tls
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Try again now."""
        self._wake.set()

    def stop(self) -> None:
        """Stop dialing; called by the dial plan."""
        self._plan.ended(self)
        if self.task is not None:
            self.task.cancel()

    async def run(self) -> None:
        limits = self._limits
        delay = limits.retry_first_seconds
        try:
            while True:
                self._wake.clear()
                try:
                    if not await self._hold():
                        return
                    delay = limits.retry_first_seconds
                except HandshakeRefused as refused:
                    if refused.code is RefusalCode.OURSELVES:
                        self._plan.found_ourselves(self)
                        return
                    self._report(refused)
                    delay = limits.retry_last_seconds
                except (OSError, TimeoutError) as error:
                    self._report(error)
                finally:
                    self.reached = False
                try:
                    async with asyncio.timeout(delay):
                        await self._wake.wait()
                except TimeoutError:
                    delay = min(delay * 1.5, limits.retry_last_seconds)
        finally:
            self._plan.ended(self)

    async def _hold(self) -> bool:
        """Connect both links and wait until one is lost. False: another dialer has the node."""
        peers = self._peers
        control = bulk = None
        peer: Peer | None = None
        error: BaseException | None = None
        try:
            async with asyncio.timeout(self._limits.connect_seconds):
                control = await self._connect(LinkClass.CONTROL)
                theirs = await control.welcomed
                if not self._plan.claim(self, theirs):
                    return False
                self.reached, self.failure = True, ""
                bulk = await self._connect(LinkClass.BULK)
                again = await bulk.welcomed
            if (again.node, again.instance) != (theirs.node, theirs.instance):
                raise ConnectionError("two different servers answer at this address")
            peer = peers.learn_peer(theirs, theirs.host or self.address[0])
            peers.learn_source(peer.node, source_of(control.link.peer_host))
            peers.peer_up(peer, (control.link, bulk.link))
            done, _ = await asyncio.wait(
                {control.lost, bulk.lost}, return_when=asyncio.FIRST_COMPLETED
            )
            error = done.pop().result()
            return True
        finally:
            for connection in (control, bulk):
                if connection is not None:
                    connection.link.close()
            if peer is not None:
                peers.peer_down(peer, error)

    async def _connect(self, kind: LinkClass) -> _DialedConnection:
        connection = _DialedConnection(
            kind, peers=self._peers, open_links=self._open_links, limits=self._limits
        )
        tls = self._tls
        host, port = self.address
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: connection.link, host, port, ssl=tls, server_hostname=host if tls else None
            )
        except asyncio.CancelledError:
            connection.link.abandon()
            raise
        return connection

    def _report(self, error: BaseException) -> None:
        host, port = self.address
        self.failure = _reason(error)
        if isinstance(error, HandshakeRefused):
            if error.by_us:
                self._refusals.count(error.code.value)
                told = f"we refused the server at {host}:{port}: {error.reason}"
            else:  # the peer's reason: "it" in it means us
                told = f'we were refused by the server at {host}:{port}: "{error.reason}"'
            self._refusals.log_once(told)
        elif isinstance(error, ssl.SSLError):
            self._refusals.tls_failed(f"the server at {host}:{port}", error)
        else:
            _log.debug("cannot reach %s:%d: %s", host, port, error or "no answer in time")


def _reason(error: BaseException) -> str:
    """The error as a text for the operator."""
    match error:
        case HandshakeRefused():
            return str(error)
        case ConnectionRefusedError():
            return "refused the connection"
        case socket.gaierror():
            return "is an unknown host"
        case TimeoutError():
            return "does not answer"
        case _:
            return str(error) or type(error).__name__
