"""A simulated TCP connection between a client and a node.

Owns: the bytes in flight in both directions, and the propagation of a close.
May not touch: what the bytes mean.
Spec: asyncio.Transport as far as broker/server/client uses it. Bytes arrive in order, in different
pieces than they were sent; when one side is gone, what it had sent may or may not arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from chaos.sim.world.node_loop import NodeLoop
from chaos.sim.world.virtual_time import WorldTime


class ByteStream:
    """`on_bytes` and `on_lost` are called for the client."""

    def __init__(
        self,
        world: WorldTime,
        rng: Random,
        delay_ns: Callable[[], int],
        *,
        address: tuple[str, int],
        on_bytes: Callable[[bytes], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._world = world
        self._rng = rng
        self._delay_ns = delay_ns
        self._on_bytes = on_bytes
        self._on_lost = on_lost
        self._address = address
        self._protocol: asyncio.Protocol | None = None
        self._loop: NodeLoop | None = None
        self._transport: ServerEnd | None = None
        self._early: list[bytes] = []  # what the client sent before the server accepted it
        self._left_early = False  # the client left before that
        self._to_server_ns = self._to_client_ns = 0
        self.closed = False

    # -- the server's side

    def accepted(self, loop: NodeLoop, protocol: asyncio.Protocol) -> None:
        self._loop, self._protocol = loop, protocol
        self._transport = ServerEnd(self, self._address)
        protocol.connection_made(self._transport)
        early, self._early = self._early, []
        for data in early:
            self._give(data)
        if self._left_early:
            self._end_server()

    def from_server(self, data: bytes) -> None:
        self._to_client_ns = max(self._world.now_ns + self._delay_ns(), self._to_client_ns + 1)
        self._world.at(self._to_client_ns, self._arrive, data)

    def _arrive(self, data: bytes) -> None:
        if not self.closed:
            self._on_bytes(data)

    def server_ended(self, error: Exception | None) -> None:
        """The server has closed its side."""
        self.server_gone()
        if self._loop is not None and self._loop.alive and self._protocol is not None:
            self._loop.call_soon(self._protocol.connection_lost, error)

    def server_gone(self) -> None:
        """The process or its connection has ended: the client is told a little later."""
        arrives = max(self._world.now_ns + self._delay_ns(), self._to_client_ns + 1)
        self._world.at(arrives, self._lost)

    def server_half_closed(self) -> None:
        """The server sends nothing more but still reads: the client leaves when it is told."""
        arrives = max(self._world.now_ns + self._delay_ns(), self._to_client_ns + 1)
        self._world.at(arrives, self._left_by_server)

    def _left_by_server(self) -> None:
        if not self.closed:
            self.close()
            self._on_lost()

    def _lost(self) -> None:
        if not self.closed:
            self.closed = True
            self._on_lost()

    # -- the client's side

    def send(self, data: bytes) -> None:
        if self.closed:
            return
        self._to_server_ns = max(self._world.now_ns + self._delay_ns(), self._to_server_ns + 1)
        self._world.at(self._to_server_ns, self.reach_server, data)

    def close(self) -> None:
        """The client leaves; what it sent before still arrives."""
        if self.closed:
            return
        self.closed = True
        arrives = max(self._world.now_ns + self._delay_ns(), self._to_server_ns + 1)
        self._world.at(arrives, self._end_server)

    def reach_server(self, data: bytes) -> None:
        if self._loop is None:
            self._early.append(data)
        elif self._loop.alive:
            self._loop.call_soon(self._give, data)

    def _give(self, data: bytes) -> None:
        assert self._protocol is not None
        assert self._transport is not None
        self._transport.receive(self._protocol, data)

    def _end_server(self) -> None:
        self._left_early = self._loop is None
        if self._loop is not None and self._loop.alive and self._protocol is not None:
            assert self._transport is not None
            if not self._transport.is_closing():
                self._transport.ended = True
                self._loop.call_soon(self._protocol.connection_lost, None)


class ServerEnd(asyncio.Transport):
    """The transport that the server's connection writes to."""

    def __init__(self, stream: ByteStream, address: tuple[str, int]) -> None:
        super().__init__()
        self._stream = stream
        self._address = address
        self._paused = False
        self._held: list[bytes] = []
        self._half_closed = False
        self.ended = False

    def receive(self, protocol: asyncio.Protocol, data: bytes) -> None:
        if self.ended:
            return
        if self._paused:
            self._held.append(data)
        else:
            protocol.data_received(data)

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        held, self._held = self._held, []
        for data in held:
            self._stream.reach_server(data)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not (self.ended or self._half_closed):
            self._half_closed = True
            self._stream.server_half_closed()

    def write(self, data: Any) -> None:
        if not (self.ended or self._half_closed):
            self._stream.from_server(bytes(data))

    def close(self) -> None:
        self._end(None)

    def abort(self) -> None:
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self.ended:
            return
        self.ended = True
        self._stream.server_ended(error)

    def is_closing(self) -> bool:
        return self.ended

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The client reads everything."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._address if name == "peername" else default
