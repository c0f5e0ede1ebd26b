"""Publishes to a full disk, or beyond the configured bounds, are refused before they get a batch
number."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from broker.wire import PubRun
from tests.support.outbox_rig import Bench, bodies

REFUSED = {"code": 503, "err_code": 10023, "description": "insufficient resources"}


def test_a_full_disk_refuses_at_once_and_earlier_batches_stay_in_flight() -> None:
    async def work() -> None:
        bench = Bench()
        client = bench.client()
        bench.publish(client, 1)
        await asyncio.sleep(0)
        bench.outbox.disk_refuses = lambda _group: True
        bench.publish(client, 2)
        bench.publish(client, 1, reply=b"")
        await asyncio.sleep(0)
        body = {"error": REFUSED, "stream": "ORDERS", "seq": 0}
        assert bodies(client) == [(b"_INBOX.c.0", body), (b"_INBOX.c.1", body)]
        assert bench.numbers == [1]
        bench.outbox.disk_refuses = lambda _group: False
        bench.publish(client, 1)
        await asyncio.sleep(0)
        assert bench.numbers == [1, 2]

    asyncio.run(work())


def test_a_stream_without_acks_sends_no_error_either() -> None:
    async def work() -> None:
        bench = Bench(silent=True)
        client = bench.client()
        bench.outbox.disk_refuses = lambda _group: True
        bench.publish(client, 2)
        await asyncio.sleep(0)
        assert bodies(client) == []
        assert bench.numbers == []

    asyncio.run(work())


TOO_MANY = {"code": 429, "err_code": 10167, "description": "too many requests"}


def test_beyond_max_buffered_msgs_publishers_are_told() -> None:
    async def work() -> None:
        bench = Bench()
        bench.outbox.buffered = (3, 0)
        client = bench.client()
        bench.publish(client, 2)
        await asyncio.sleep(0)
        bench.publish(client, 3)
        await asyncio.sleep(0)
        body = {"error": TOO_MANY, "stream": "ORDERS", "seq": 0}
        assert bodies(client) == [(b"_INBOX.c.1", body), (b"_INBOX.c.2", body)]
        assert sum(one.rows for one in bench.outbox.core.in_flight) == 3

    asyncio.run(work())


def test_beyond_max_buffered_size_publishers_are_told() -> None:
    async def work() -> None:
        bench = Bench()
        client = bench.client()
        bench.publish(client, 1)
        await asyncio.sleep(0)
        held = bench.outbox.core.held_bytes
        bench.outbox.buffered = (0, held)
        bench.publish(client, 1)
        assert [body["error"] for _, body in bodies(client)] == [TOO_MANY]
        bench.outbox.buffered = (0, 4 * held)
        bench.publish(client, 1)
        await asyncio.sleep(0)
        assert bench.outbox.core.held_rows == 2

    asyncio.run(work())


def test_a_message_with_too_many_headers_is_refused_before_replicas_parse_it() -> None:
    async def work() -> None:
        bench = Bench()
        client = bench.client()
        long = b"NATS/1.0\r\n" + b"Nats-Msg-Id:\r\n" * 5000 + b"\r\n"
        short = b"NATS/1.0\r\nA: b\r\n\r\n"
        run = PubRun.of(
            [(b"orders.x", b"_INBOX.c.%d" % at, long if at % 2 else short, b"") for at in range(4)]
        )
        bench.router.publish_run(client, run)
        await asyncio.sleep(0)
        refused = [(to, cast(Any, body["error"])["err_code"]) for to, body in bodies(client)]
        assert refused == [(b"_INBOX.c.1", 10097), (b"_INBOX.c.3", 10097)]
        assert [batch.rows for batch in bench.sent] == [2]

    asyncio.run(work())
