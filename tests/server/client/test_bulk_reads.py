"""Bulk reads on a client connection: one after the other, never two at once."""

from __future__ import annotations

import asyncio

from broker.server.services import BulkReader
from tests.support.server import RawClient, run, running, until


class SlowScans:
    """Bulk reads that end when the test says so."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.go_on = asyncio.Event()

    async def scan(self, connection: BulkReader, request_json: bytes) -> None:
        self.asked.append(request_json)
        await self.go_on.wait()
        connection.queue(b"+SCAN\r\n")


def test_a_second_scan_during_the_first_closes_the_connection() -> None:
    async def test() -> None:
        async with running() as server:
            scans = SlowScans()
            server.clients.bulk_reads = scans
            try:
                first, second = await RawClient.open(server), await RawClient.open(server)
                first.send(b'SCAN {"n":1}\r\n')
                second.send(b'SCAN {"n":2}\r\n')  # on another connection: allowed
                await until(lambda: len(scans.asked) == 2)
                first.send(b'SCAN {"n":3}\r\n')
                assert b"one scan at a time" in (await first.end()).lower()
                assert len(scans.asked) == 2
                scans.go_on.set()
                assert await second.line() == b"+SCAN\r\n"
                second.send(b'SCAN {"n":4}\r\n')  # the previous one has ended
                assert await second.line() == b"+SCAN\r\n"
                assert len(scans.asked) == 3
                second.close()
            finally:
                scans.go_on.set()
                server.clients.bulk_reads = None

    run(test())
