"""Clients that do not read, do not answer, or do not log in."""

from __future__ import annotations

import asyncio
import socket

from broker.config.options import SECOND, Authorization, Limits, Ping
from broker.server.server import Server
from tests.support.server import RawClient, run, running, until


async def sleeper(server: Server, subject: bytes) -> socket.socket:
    """Subscribes and then never reads."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", server.port))
    await loop.sock_sendall(
        sock, b'CONNECT {"verbose":false}\r\nSUB ' + subject + b" 1\r\nPING\r\n"
    )
    got = b""
    while not got.endswith(b"PONG\r\n"):
        got += await loop.sock_recv(sock, 65536)
    return sock


def test_a_client_over_max_pending_is_closed_and_others_stay() -> None:
    async def test() -> None:
        limits = Limits(max_pending=4 * 1024 * 1024)
        async with running(limits=limits) as server:
            sock = await sleeper(server, b"flood")
            good = await RawClient.open(server)
            body = b"x" * 100_000
            while len(server.connections) == 2:
                good.send(b"PUB flood 100000\r\n" + body + b"\r\n")
                await good.flush()
            assert server.connections.history[-1].reason == "Slow Consumer (Pending Bytes)"
            assert server.connections.traffic().slow_consumers == 1
            assert server.connections.traffic().stalls >= 1
            assert await good.flush() == b""
            sock.close()
            good.close()

    run(test())


def test_a_write_past_its_deadline_closes_the_client() -> None:
    async def test() -> None:
        limits = Limits(write_deadline_ns=SECOND // 5)
        async with running(limits=limits) as server:
            sock = await sleeper(server, b"flood")
            good = await RawClient.open(server)
            body = b"x" * 1_000_000
            for _ in range(10):
                good.send(b"PUB flood 1000000\r\n" + body + b"\r\n")
            await good.flush()
            await until(lambda: len(server.connections) == 1)
            assert server.connections.history[-1].reason == "Slow Consumer (Write Deadline)"
            sock.close()
            good.close()

    run(test())


def test_a_slow_reader_gets_everything_in_order_while_the_producer_waits() -> None:
    async def test() -> None:
        limits = Limits(max_pending=2 * 1024 * 1024)
        async with running(limits=limits) as server:
            sock = await sleeper(server, b"steady")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            producer = await RawClient.open(server)
            count, size = 200, 50_000
            loop = asyncio.get_running_loop()

            async def produce() -> None:
                for number in range(count):
                    producer.send(b"PUB steady %d\r\n" % size)
                    producer.send(b"%08d" % number + b"x" * (size - 8) + b"\r\n")
                    await producer.writer.drain()

            async def consume() -> bytes:
                total = count * (size + len(b"MSG steady 1 50000\r\n") + 2)
                got = bytearray()
                while len(got) < total:
                    part = await loop.sock_recv(sock, 256 * 1024)
                    assert part, "closed as a slow consumer"
                    got += part
                return bytes(got)

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(produce())
                received = tasks.create_task(consume())
            lines = received.result().split(b"MSG steady 1 50000\r\n")[1:]
            assert [int(line[:8]) for line in lines] == list(range(count))
            sock.close()
            producer.close()

    run(test())


def test_silent_clients_are_stale_and_answering_ones_are_not() -> None:
    async def test() -> None:
        async with running(ping=Ping(interval_ns=SECOND // 20, outstanding_max=2)) as server:
            silent = await RawClient.open(server)
            silent.send(b"PING\r\n")
            got = await silent.end()
            assert got.startswith(b"PONG\r\n")
            assert got.endswith(b"PING\r\nPING\r\n-ERR 'Stale Connection'\r\n")
            assert server.connections.traffic().stale_connections == 1
            alive = await RawClient.open(server)
            alive.send(b"PING\r\n")
            answered = 0
            while answered < 5:
                if await alive.line() == b"PING\r\n":
                    alive.send(b"PONG\r\n")
                    answered += 1
            assert server.connections[alive.info["client_id"]].rtt_s > 0
            alive.close()

    run(test())


def test_authentication_has_a_deadline() -> None:
    async def test() -> None:
        auth = Authorization(token="t", timeout_ns=SECOND // 50)
        async with running(authorization=auth) as server:
            client = await RawClient.open(server, connect=None)
            assert client.info["auth_required"] is True
            assert await client.end() == b"-ERR 'Authentication Timeout'\r\n"
            eager = await RawClient.open(server, connect=b"PING\r\n")
            assert await eager.end() == b"-ERR 'Authorization Violation'\r\n"
            noisy = await RawClient.open(server, connect=b"\x16\x03garbage")
            assert await noisy.end() == b"-ERR 'Authorization Violation'\r\n"

    run(test())


def test_no_auth_user_hides_auth_required_and_still_checks_credentials() -> None:
    from broker.config.options import User

    async def test() -> None:
        auth = Authorization(users=(User("anon"), User("bob", "b")), no_auth_user="anon")
        async with running(authorization=auth) as server:
            client = await RawClient.open(server, connect=b"PING\r\n")
            assert "auth_required" not in client.info
            assert await client.line() == b"PONG\r\n"
            client.close()
            wrong = await RawClient.open(server, connect=b'CONNECT {"user":"bob","pass":"x"}\r\n')
            assert await wrong.end() == b"-ERR 'Authorization Violation'\r\n"

    run(test())
