"""The outbound buffer of a client: what is sent at once stays behind what was queued before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from broker.accounts.unsent_bytes import UnsentBytes
from broker.server.client.client_socket import ClientSocket
from broker.server.client.outbound import Outbound
from broker.server.routing.flush_queue import FlushQueue


class RecordingTransport:
    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return 0


class PatientOwner:
    def queue_overflow(self) -> None:
        raise AssertionError("the queue is short")

    def write_too_slow(self) -> None:
        raise AssertionError("no deadline passes")


def in_loop(test: Callable[[Outbound, RecordingTransport], None]) -> None:
    async def run() -> None:
        socket, transport = ClientSocket(), RecordingTransport()
        socket.transport = cast(Any, transport)
        loop = asyncio.get_running_loop()
        outbound = Outbound(loop, socket, PatientOwner(), UnsentBytes(), FlushQueue())
        outbound.set_limits(max_pending=1 << 20, write_deadline_ns=60_000_000_000)
        try:
            test(outbound, transport)
        finally:
            outbound.drop()

    asyncio.run(run())


def test_an_answer_is_written_at_once() -> None:
    def test(outbound: Outbound, transport: RecordingTransport) -> None:
        outbound.send(b"ack")
        assert transport.written == [b"ack"]
        assert not outbound.flush_due

    in_loop(test)


def test_an_answer_does_not_overtake_what_was_queued() -> None:
    def test(outbound: Outbound, transport: RecordingTransport) -> None:
        outbound.queue(b"message")
        outbound.send(b"ack")
        outbound.flush()
        assert b"".join(transport.written) == b"messageack"

    in_loop(test)


def test_an_answer_waits_while_the_transport_is_full() -> None:
    def test(outbound: Outbound, transport: RecordingTransport) -> None:
        outbound.pause_writing()
        outbound.send(b"ack")
        assert transport.written == []
        assert outbound.queued_bytes == 3
        outbound.resume_writing()
        assert transport.written == [b"ack"]

    in_loop(test)


@pytest.mark.parametrize("closed", ["closed", "closing", "gone"])
def test_nothing_is_written_to_a_client_that_leaves(closed: str) -> None:
    def test(outbound: Outbound, transport: RecordingTransport) -> None:
        if closed == "closed":
            outbound.closed = True
        elif closed == "closing":
            transport.closing = True
        else:
            outbound._socket.transport = None
        outbound.send(b"ack")
        assert transport.written == []

    in_loop(test)
