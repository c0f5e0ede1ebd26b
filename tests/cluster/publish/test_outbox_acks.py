"""Acks: in bulk where one inbox gets them all, one by one otherwise."""

from __future__ import annotations

import json

import pytest

from broker.subjects import Subscription
from broker.wire import PubRun
from tests.support.cluster_fakes import run, turns
from tests.support.outbox_rig import Bench, acks, bodies, bulk_seqs


@pytest.mark.parametrize("extra", [b"", b',"domain":"hub"'])
def test_acks_go_in_bulk_to_the_one_inbox_subscription(extra: bytes) -> None:
    async def test() -> None:
        bench = Bench(extra=extra)
        client = bench.client(b"_INBOX.c.*", b"5")
        bench.publish(client, 120)
        await turns()
        bench.answer(1, 95)  # over two changes of the number of digits
        assert client.got == []
        assert len(client.encoded) == 1
        sid, data, messages, payload_bytes = client.encoded[0]
        found = list(acks(data))
        domain = {"domain": "hub"} if extra else {}
        assert found == [
            (b"_INBOX.c.%d" % i, b"5", {"stream": "ORDERS", "seq": 95 + i} | domain)
            for i in range(120)
        ]
        assert (sid, messages) == (b"5", 120)
        lines = sum(len(b"MSG %b 5 %d\r\n\r\n" % (r, len(str(b)))) for r, _, b in found)
        widths = sum(len(str(95 + i)) for i in range(120))
        fixed = len(b'{"stream":"ORDERS","seq":}') + len(extra)
        assert payload_bytes == fixed * 120 + widths
        assert payload_bytes < len(data) < payload_bytes + lines + 120

    run(test())


def test_each_connection_gets_its_own_acks() -> None:
    async def test() -> None:
        bench = Bench()
        one, other = bench.client(b"_INBOX.one.*", b"1"), bench.client(b"_INBOX.other.*", b"2")
        for i in range(3):
            bench.publish(one, 2, reply=b"_INBOX.one.%d", subject=b"orders.%d" % i)
            bench.publish(other, 1, reply=b"_INBOX.other.%d")
        await turns()
        bench.answer(1, 1)
        assert (bulk_seqs(one), bulk_seqs(other)) == ([1, 2, 4, 5, 7, 8], [3, 6, 9])

    run(test())


def test_segments_of_one_connection_are_acked_together() -> None:
    async def test() -> None:
        bench = Bench()
        client = bench.client()
        for i in range(10):
            bench.publish(client, 1, reply=b"_INBOX.c.%d", subject=b"orders.%d" % i)
        await turns()
        bench.answer(1, 1)
        assert len(client.encoded) == 1
        assert client.encoded[0][2] == 10

    run(test())


@pytest.mark.parametrize("reason", ["watchful", "limited", "queue", "two", "literal"])
def test_without_exactly_one_plain_inbox_rows_are_acked_one_by_one(reason: str) -> None:
    async def test() -> None:
        bench = Bench()
        client = bench.client(b"_INBOX.c.*", b"5")
        bench.publish(client, 2)
        match reason:
            case "watchful":  # permissions or tracing: every message is inspected
                client.watchful = True
            case "limited":
                next(iter(bench.account.subs.match(b"_INBOX.c.1").plain)).max_msgs = 10
            case "queue":
                member = Subscription(client, bench.account, b"_INBOX.c.*", b"q", b"6")
                bench.account.subs.insert(member)
            case "two" | "literal":
                pattern = b"_INBOX.>" if reason == "two" else b"_INBOX.c.1"
                bench.account.subs.insert(Subscription(client, bench.account, pattern, b"", b"6"))
        await turns()
        bench.answer(1, 8)
        assert client.encoded == []
        expected = {(b"_INBOX.c.0", 8), (b"_INBOX.c.1", 9)}
        assert {(reply, body["seq"]) for reply, body in bodies(client)} == expected

    run(test())


def test_rows_without_reply_take_a_sequence_and_no_ack() -> None:
    async def test() -> None:
        bench = Bench()
        client = bench.client()
        bench.publish(client, 3, reply=b"")
        bench.publish(client, 1)
        await turns()
        bench.answer(1, 10)
        assert bulk_seqs(client) == [13]

    run(test())


def test_rows_with_and_without_reply_in_one_run() -> None:
    async def test() -> None:
        bench = Bench()
        client = bench.client()
        replies = (b"_INBOX.c.0", b"", b"_INBOX.c.2")
        mixed = PubRun.of([(b"orders.a", reply, b"", b"x") for reply in replies])
        bench.router.publish_run(client, mixed)
        await turns()
        bench.answer(1, 10)
        found = [(reply, body["seq"]) for reply, body in bodies(client)]
        assert found == [(b"_INBOX.c.0", 10), (b"_INBOX.c.2", 12)]

    run(test())


def test_exceptions_give_each_row_its_own_reply() -> None:
    async def test() -> None:
        bench = Bench()
        client = bench.client()
        bench.publish(client, 5)
        await turns()
        refused = b'{"error":{"code":400,"err_code":10071},"stream":"ORDERS","seq":0}'
        repeated = b'{"stream":"ORDERS","seq":3,"duplicate":true}'
        bench.answer(1, 20, [(1, refused), (3, repeated)])
        plain = [{"stream": "ORDERS", "seq": seq} for seq in (20, 21, 22)]
        assert bodies(client) == [
            (b"_INBOX.c.0", plain[0]),
            (b"_INBOX.c.1", json.loads(refused)),
            (b"_INBOX.c.2", plain[1]),
            (b"_INBOX.c.3", json.loads(repeated)),
            (b"_INBOX.c.4", plain[2]),
        ]

    run(test())


def test_a_batch_of_refused_rows_only_is_answered() -> None:
    async def test() -> None:
        bench = Bench()
        client = bench.client()
        bench.publish(client, 2)
        await turns()
        bench.answer(1, 0, [(0, b'{"a":1}'), (1, b'{"b":2}')])
        assert [body for _, body in bodies(client)] == [{"a": 1}, {"b": 2}]
        assert not bench.core.in_flight

    run(test())


def test_an_answer_without_a_sequence_acks_nothing() -> None:
    """A stream that knows a later session of this node stores nothing and names no sequence."""

    async def test() -> None:
        bench = Bench()
        client = bench.client()
        bench.publish(client, 2)
        await turns()
        bench.answer(1, 0)
        bench.answer(1, 0, [(0, b"{}")])
        assert (client.got, client.encoded) == ([], [])
        assert [batch.number for batch in bench.core.in_flight] == [1]

    run(test())


def test_a_stream_without_acks_stays_silent() -> None:
    async def test() -> None:
        bench = Bench(silent=True)
        client = bench.client()
        bench.publish(client, 3)
        await turns()
        bench.answer(1, 1, [(1, b"{}")])
        bench.publish(client, 3)
        await turns()
        bench.answer(2, 3)
        assert (client.got, client.encoded) == ([], [])
        assert bench.core.held_bytes == 0

    run(test())


def test_acks_to_a_disconnected_client_are_dropped() -> None:
    async def test() -> None:
        bench = Bench()
        client = bench.client()
        bench.publish(client, 1)
        await turns()
        client.gone = True
        bench.answer(1, 1)
        for sub in list(bench.account.subs):
            if sub is not bench.capture:
                bench.account.subs.remove(sub)
        bench.publish(client, 1)
        await turns()
        bench.answer(2, 2)
        assert not bench.core.in_flight

    run(test())
