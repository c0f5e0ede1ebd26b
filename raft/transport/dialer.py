"""One address that we dial, and the two links to the node that lives there.

Owns: connecting, our side of the handshake, the retry delay of one address.
May not touch: accepted connections; which dialer may hold a node's links (raft.mesh decides).
Spec: control link first, then bulk, to the same node; losing either ends both. Retries start at
once and grow to a second, so that a cluster that starts together finds itself quickly."""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import TYPE_CHECKING

from raft.transport.handshake import (
    HELLO,
    WELCOME,
    HandshakeRefused,
    Hello,
    LinkClass,
    RefusalCode,
    check_hello,
    frame,
    new_nonce,
    read_greeting,
    read_hello,
)
from raft.transport.link import LINK_CHANNEL, Link
from raft.types import NodeId

if TYPE_CHECKING:
    from raft.transport.peer_table import Peer, PeerTable

LinkPair = tuple[Link, Link]  # control, bulk
_log = logging.getLogger("raft.transport")


class _Dialled:
    """A dialled connection: first a handshake, then a link that stands until it is lost."""

    def __init__(self, mesh: PeerTable, kind: LinkClass) -> None:
        loop = asyncio.get_running_loop()
        self.welcomed: asyncio.Future[Hello] = loop.create_future()
        self.lost: asyncio.Future[BaseException | None] = loop.create_future()
        self._mesh = mesh
        self._kind = kind
        self._nonce = b""
        limits = mesh.limits
        control = kind is LinkClass.CONTROL
        self.link = Link(
            on_frame=self._frame,
            on_lost=self._lost,
            on_made=mesh.link_made,
            queue_bytes_max=(
                limits.control_queue_bytes_max if control else limits.bulk_queue_bytes_max
            ),
        )

    def _frame(self, link: Link, channel: int, view: memoryview) -> None:
        if channel != LINK_CHANNEL:
            raise HandshakeRefused(
                RefusalCode.MALFORMED, "a frame on a link that we only write", by_us=True
            )
        if self.welcomed.done():
            return  # a pong: the link has noted that it is alive
        ourselves = self._mesh.ourselves
        if not self._nonce:
            their_nonce = read_greeting(bytes(view))
            link.sealed = True
            self._nonce = new_nonce()
            hello = ourselves.hello(
                self._kind,
                peers=self._mesh.known(),
                their_nonce=their_nonce,
                our_nonce=self._nonce,
                accepting=False,
            )
            link.send(LINK_CHANNEL, frame(HELLO, hello))
            return
        theirs = read_hello(bytes(view), WELCOME)
        check_hello(theirs, ours=ourselves, our_nonce=self._nonce, accepting=False)
        link.node, link.link_class = NodeId(theirs.node), self._kind
        self.welcomed.set_result(theirs)

    def _lost(self, link: Link, error: BaseException | None) -> None:
        if not self.welcomed.done():
            self.welcomed.set_exception(error or ConnectionError("closed during the handshake"))
            self.welcomed.exception()  # seen: a dialer that was stopped asks no more
        if not self.lost.done():
            self.lost.set_result(error)
        self._mesh.link_lost(link, error)


class Dialer:
    """`run` is a task of the mesh; it ends when the address is our own or another's business."""

    def __init__(self, mesh: PeerTable, address: tuple[str, int]) -> None:
        self.address = address
        self.reached = False  # the handshake of the control link is done and claimed
        self.task: asyncio.Task[None] | None = None
        self._mesh = mesh
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Try again now."""
        self._wake.set()

    def stop(self) -> None:
        """End for good, from outside."""
        self._mesh.dialer_ended(self)
        if self.task is not None:
            self.task.cancel()

    async def run(self) -> None:
        limits = self._mesh.limits
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
                        self._mesh.found_ourselves(self)
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
            self._mesh.dialer_ended(self)

    async def _hold(self) -> bool:
        """Connect both links and wait until one is lost. False: another dialer has the node."""
        mesh = self._mesh
        control = bulk = None
        peer: Peer | None = None
        error: BaseException | None = None
        try:
            async with asyncio.timeout(mesh.limits.connect_seconds):
                control = await self._connect(LinkClass.CONTROL)
                theirs = await control.welcomed
                if not mesh.claim(self, theirs):
                    return False
                self.reached = True
                bulk = await self._connect(LinkClass.BULK)
                again = await bulk.welcomed
            if (again.node, again.instance) != (theirs.node, theirs.instance):
                raise ConnectionError("two servers answer at the address")
            peer = mesh.learn_peer(theirs, theirs.host or self.address[0])
            mesh.peer_up(peer, (control.link, bulk.link))
            done, _ = await asyncio.wait(
                {control.lost, bulk.lost}, return_when=asyncio.FIRST_COMPLETED
            )
            error = done.pop().result()
            return True
        finally:
            for dialled in (control, bulk):
                if dialled is not None:
                    dialled.link.close()
            if peer is not None:
                mesh.peer_down(peer, error)

    async def _connect(self, kind: LinkClass) -> _Dialled:
        dialled = _Dialled(self._mesh, kind)
        tls = self._mesh.tls
        host, port = self.address
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: dialled.link, host, port, ssl=tls, server_hostname=host if tls else None
            )
        except asyncio.CancelledError:
            dialled.link.forsake()
            raise
        return dialled

    def _report(self, error: BaseException) -> None:
        host, port = self.address
        if isinstance(error, HandshakeRefused):
            if error.by_us:
                self._mesh.refused[error.code.value] += 1
            side = "refused the server" if error.by_us else "were refused by the server"
            self._mesh.log_once(f"we {side} at {host}:{port}: {error.reason}")
        elif isinstance(error, ssl.SSLError):
            self._mesh.tls_failed(f"the server at {host}:{port}", error)
        else:
            _log.debug("%s:%d cannot be reached: %s", host, port, error or "no answer in time")
