"""The WebSocket of a leaf node that dials its hub: the upgrade, then frames.

Owns: our request, its deadline, the checks of the answer.
May not touch: frames (framed_transport.py), the leaf node protocol (dialed_leaf.py). TLS is below.
Spec: RFC 6455; nats-server: the path `/leafnode` behind that of the URL. Bound: the head of the
answer has ANSWER_BYTES_MAX bytes."""

from __future__ import annotations

import asyncio
import secrets
from base64 import b64encode
from collections.abc import Callable
from typing import cast
from urllib.parse import SplitResult

from broker.config.options import LeafRemote
from broker.server.leaf.dialed_leaf import DialedLeaf
from broker.server.listeners.framed_transport import FramedTransport
from broker.server.process.log import logger
from broker.server.routing.fair_queue import FairQueue
from broker.wire.upgrade import KEY_SIZE, Offer, UpgradeRefused
from broker.wire.websocket import Deflater, FrameReader, FrameWriter, masked_control

ANSWER_BYTES_MAX = 16 * 1024
HEAD_END = b"\r\n\r\n"
PATH = "/leafnode"
SCHEMES = ("ws", "wss")


def _mask() -> bytes:
    return secrets.token_bytes(4)


class LeafWebSocket(FramedTransport):
    """`refused` is called if the upgrade fails; connection_made was not called then."""

    def __init__(
        self,
        connection: DialedLeaf,
        remote: LeafRemote,
        url: SplitResult,
        *,
        loop: asyncio.AbstractEventLoop,
        turns: FairQueue,
        max_payload: int,
        refused: Callable[[], None],
    ) -> None:
        super().__init__(loop)
        self._connection = connection
        self._remote = remote
        self._fair = turns
        self._max_payload = max_payload
        self._refused = refused
        self._head = bytearray()
        self._masked = True
        self._deadline: asyncio.TimerHandle | None = None
        self._offer = Offer(
            host=url.netloc.rpartition("@")[2],
            path=url.path.rstrip("/") + PATH,
            key=b64encode(secrets.token_bytes(KEY_SIZE)).decode(),
            compression=remote.ws_compression,
            no_masking=remote.ws_no_masking,
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._below = cast(asyncio.Transport, transport)
        self._below.write(self._offer.request())
        patience_s = self._remote.first_info_timeout_ns / 1e9
        self._deadline = self._loop.call_later(patience_s, self._refuse, "timeout")

    def data_received(self, chunk: bytes) -> None:
        if self._above is not None:
            self.received(chunk)
        elif self._deadline is not None:
            self._receive_head(chunk)

    def _receive_head(self, chunk: bytes) -> None:
        self._head += chunk
        end = self._head.find(HEAD_END)
        if end < 0:
            if len(self._head) > ANSWER_BYTES_MAX:
                self._refuse("response head too long")
            return
        try:
            compression, self._masked = self._offer.answered(bytes(self._head[:end]))
        except UpgradeRefused as refusal:
            self._refuse(str(refusal))
            return
        rest = bytes(self._head[end + len(HEAD_END) :])
        self._stop_waiting()
        if self._connection.closed:  # the remote was removed meanwhile
            self._refuse("no longer wanted")
            return
        self._connection.framed, self._connection.ws_compressed = True, compression
        reader = FrameReader(max_payload=self._max_payload, masked=False, compression=compression)
        writer = FrameWriter(
            deflater=Deflater() if compression else None, key=_mask if self._masked else None
        )
        self.enter(self._connection, self._fair, reader=reader, writer=writer)
        if rest:
            self.received(rest)

    def control(self, frame: bytes) -> bytes:
        return masked_control(frame, _mask()) if self._masked else frame

    def _refuse(self, reason: str) -> None:
        logger.error("Error soliciting websocket connection: %s", reason)
        self._stop_waiting()
        if self._below is not None:
            self._below.abort()

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_waiting()
        if self._above is None:
            self._refused()
        self.lost(error)
