"""Rows of fast batches are marked for the leader, and answered with its replies only."""

from __future__ import annotations

import asyncio

from broker.jetstream.commands.publish_entry import FastOp
from broker.wire import PubRun
from tests.support.outbox_rig import Bench, bodies

START, APPEND = b"_INBOX.c.f.9.ok.1.0.$FI", b"_INBOX.c.f.9.ok.2.1.$FI"


def test_marked_rows_get_the_leaders_replies_and_no_ack() -> None:
    async def work() -> None:
        bench = Bench()
        client = bench.client(b"_INBOX.c.>")
        replies = [b"_INBOX.c.one", START, APPEND, b"_INBOX.c.two"]
        run = PubRun.of([(b"orders.new", reply, b"", b"x") for reply in replies])
        bench.router.publish_run(client, run)
        await asyncio.sleep(0)
        spans = [(s.row, s.op, s.id, s.seq) for s in bench.sent[0].fast]
        assert spans == [(1, FastOp.START, b"f", 1), (2, FastOp.APPEND, b"f", 2)]
        bench.answer(1, 10, [(1, b'{"a":1}'), (1, b'{"b":2}'), (3, b'{"seq":13}')])
        assert bodies(client) == [
            (b"_INBOX.c.one", {"stream": "ORDERS", "seq": 10}),
            (START, {"a": 1}), (START, {"b": 2}), (b"_INBOX.c.two", {"seq": 13}),
        ]  # fmt: skip

    asyncio.run(work())


def test_a_batch_of_marked_rows_may_get_no_reply_at_all() -> None:
    async def work() -> None:
        bench = Bench()
        client = bench.client(b"_INBOX.c.>")
        bench.publish(client, 3, reply=APPEND)
        await asyncio.sleep(0)
        bench.answer(1, 10)
        assert bodies(client) == []
        assert not client.encoded
        assert not bench.core.in_flight

    asyncio.run(work())
