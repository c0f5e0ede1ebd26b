"""The clients of an account that do not read hold a bounded number of bytes together."""

from __future__ import annotations

from typing import Any, cast

from broker.accounts.unsent_bytes import UnsentBytes
from broker.server.client.client_socket import ClientSocket
from broker.server.client.outbound import Outbound
from broker.server.routing.flush_queue import FlushedConnection, FlushQueue

MAX_PENDING = 1000


class NoFlushes(FlushQueue):
    def add(self, connection: FlushedConnection) -> None:
        """Nothing is flushed at the end of a turn here."""


class Transport:
    def __init__(self) -> None:
        self.written = 0

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.written += len(data)


class Publisher:
    def __init__(self) -> None:
        self.pauses = 0

    def pause_reading(self) -> None:
        self.pauses += 1

    def resume_reading(self) -> None:
        self.pauses -= 1


class Client:
    """One client with its queue; `reads` decides whether its transport takes anything."""

    def __init__(self, unsent: UnsentBytes, *, reads: bool) -> None:
        self.overflows = 0
        self.transport = Transport()
        socket = ClientSocket()
        socket.transport = cast(Any, self.transport)
        self.outbound = Outbound(cast(Any, None), socket, cast(Any, self), unsent, NoFlushes())
        self.outbound.set_limits(max_pending=MAX_PENDING, write_deadline_ns=10**10)
        if not reads:
            self.outbound._full = True

    def queue_overflow(self) -> None:
        self.overflows += 1
        self.outbound.closed = True
        self.outbound.drop()


def test_an_account_of_silent_clients_holds_twice_what_one_may() -> None:
    unsent = UnsentBytes()
    clients = [Client(unsent, reads=False) for _ in range(20)]
    most = 0
    for _ in range(50):
        for client in clients:
            client.outbound.queue(b"x" * 50)
            most = max(most, unsent.bytes)
    assert most <= 2 * MAX_PENDING + 50
    assert any(client.overflows for client in clients)
    for client in clients:
        client.outbound.drop()
    assert (unsent.bytes, unsent.queues) == (0, 0)


def test_a_client_that_reads_is_not_closed_for_the_others() -> None:
    unsent = UnsentBytes()
    silent = [Client(unsent, reads=False) for _ in range(3)]
    reader = Client(unsent, reads=True)
    for client in silent:
        client.outbound.queue(b"x" * 900)
    for _ in range(10):
        reader.outbound.queue(b"y" * 300)
    assert reader.transport.written == 3000
    assert not reader.overflows


def test_publishers_wait_until_half_is_sent() -> None:
    unsent = UnsentBytes()
    client, other = Client(unsent, reads=False), Client(unsent, reads=False)
    publisher = Publisher()
    client.outbound.queue(b"x" * 600)
    other.outbound.queue(b"x" * 600)
    for _ in range(2):
        client.outbound.wait_for_readers(cast(Any, publisher))
    assert publisher.pauses == 1
    client.outbound.drop()
    assert publisher.pauses == 1  # 600 of 1,000 are left
    other.outbound.drop()
    assert publisher.pauses == 0


def test_the_bytes_move_to_the_account_that_a_client_enters() -> None:
    before, after = UnsentBytes(), UnsentBytes()
    client = Client(before, reads=False)
    client.outbound.queue(b"x" * 100)
    client.outbound.enter_account(after)
    assert (before.bytes, before.queues, after.bytes, after.queues) == (0, 0, 100, 1)
    client.outbound.drop()
    assert (after.bytes, after.queues) == (0, 0)
