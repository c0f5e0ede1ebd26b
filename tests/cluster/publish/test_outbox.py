"""The outbox collects publishes into batches, pauses publishers, and ends with its stream."""

from __future__ import annotations

import asyncio

import pytest

from broker.cluster.publish.outbox_core import IN_FLIGHT_MAX, RESEND_AFTER_S
from broker.cluster.publish.outbox_shell import (
    BATCH_BYTES_MAX,
    BATCH_ROWS_MAX,
    HEADER_ROWS_MAX,
)
from broker.cluster.publish.publish_batch import BatchAnswer, PublishBatch
from broker.store.block.codec import Block
from broker.wire import PubRun
from tests.support.cluster_fakes import ClockedLoop, run, run_clocked, turns
from tests.support.outbox_rig import GROUP, Bench

# -- collecting -----------------------------------------------------------------------------------


def test_publishes_of_one_turn_make_one_batch() -> None:
    async def test() -> None:
        bench = Bench()
        client = bench.client()
        for subject in (b"orders.a", b"orders.b", b"orders.a"):
            bench.publish(client, 2, subject=subject)
        assert bench.sent == []
        await turns()
        assert bench.numbers == [1]
        block = Block(bench.sent[0].block, verify=False)
        assert [block.subject(i) for i in range(6)] == [
            *(b"orders.a", b"orders.a", b"orders.b", b"orders.b", b"orders.a", b"orders.a")
        ]
        assert block.first_seq == 0  # sequences are assigned at apply only

    run(test())


def test_at_most_four_batches_are_in_flight() -> None:
    async def test() -> None:
        bench = Bench()
        client = bench.client()
        for _ in range(IN_FLIGHT_MAX + 3):
            bench.publish(client, 1)
            await turns()
        assert bench.numbers == [1, 2, 3, 4]
        bench.answer(1, 1)
        # What was collected meanwhile is one batch: a long wait makes larger batches, not more.
        assert bench.numbers == [1, 2, 3, 4, 5]
        assert bench.sent[-1].rows == 3

    run(test())


def test_a_batch_has_few_messages_with_headers() -> None:
    """They may be checked one by one at apply: 8,192 schedules held every replica for a second."""

    async def test() -> None:
        bench = Bench()
        client = bench.client()
        headers = b"NATS/1.0\r\nA: b\r\n\r\n"
        rows = [(b"orders.h", b"", headers, b"x")] * 1000
        bench.publish(client, 50)
        bench.router.publish_run(client, PubRun.of(rows))
        bench.publish(client, 500)
        await turns()
        number = 0
        while bench.core.in_flight:
            number += 1
            bench.answer(number, number * 10_000)
        blocks = [Block(batch.block, verify=False) for batch in bench.sent]
        assert sum(block.rows for block in blocks) == 1550
        for block in blocks:
            assert block.rows <= (HEADER_ROWS_MAX if block.headers_len else BATCH_ROWS_MAX)

    run(test())


@pytest.mark.parametrize("payload", [0, 10, 1000, 200_000])
def test_no_batch_exceeds_its_bounds(payload: int) -> None:
    async def test() -> None:
        bench = Bench()
        client = bench.client()
        count = 2 * BATCH_ROWS_MAX + 5 if payload < 1000 else 5000 if payload == 1000 else 23
        for _ in range(2):
            bench.publish(client, count, payload=b"p" * payload)
        await turns()
        number = 0
        while bench.core.in_flight:
            number += 1
            bench.answer(number, number * 100_000)
        blocks = [Block(batch.block, verify=False) for batch in bench.sent]
        assert sum(block.rows for block in blocks) == 2 * count
        assert max(len(batch.block) for batch in bench.sent) <= BATCH_BYTES_MAX
        assert max(block.rows for block in blocks) <= BATCH_ROWS_MAX
        # All but the last one are full: one more row would not fit.
        row = payload + len(b"orders.new") + 20
        for batch in bench.sent[:-1]:
            full = len(batch.block) + row + 64 > BATCH_BYTES_MAX or batch.rows == BATCH_ROWS_MAX
            assert full, (len(batch.block), batch.rows)
        assert bench.core.held_bytes == 0

    run(test())


def test_long_subjects_count_towards_the_bound() -> None:
    async def test() -> None:
        bench = Bench()
        client = bench.client()
        bench.publish(client, 600, subject=b"orders." + b"s" * 3900)
        await turns()
        assert sum(batch.rows for batch in bench.sent) == 600
        assert max(len(batch.block) for batch in bench.sent) <= BATCH_BYTES_MAX

    run(test())


def test_a_message_larger_than_a_batch_is_a_batch_of_its_own() -> None:
    async def test() -> None:
        bench = Bench()
        client = bench.client()
        bench.publish(client, 1)
        bench.publish(client, 1, payload=b"p" * (BATCH_BYTES_MAX + 1))
        bench.publish(client, 1)
        await turns()
        assert [batch.rows for batch in bench.sent] == [1, 1, 1]

    run(test())


# -- backpressure and the end ---------------------------------------------------------------------


def test_publishers_are_paused_above_the_bound_and_resumed_at_half_of_it() -> None:
    async def test() -> None:
        bench = Bench(held_bytes_max=10_000)
        greedy, other, idle = (bench.client(b"_INBOX.%b.*" % name) for name in (b"c", b"o", b"i"))
        for _ in range(3):
            bench.publish(greedy, 1, payload=b"p" * 3000)
            await turns()
        assert greedy.pauses == 0
        for _ in range(4):
            bench.publish(greedy, 1, payload=b"p" * 3000)
            await turns()
        bench.publish(other, 1)
        assert (greedy.pauses, other.pauses, idle.pauses) == (1, 1, 0)  # each one once
        await turns()
        number = 0
        while bench.core.in_flight:
            number += 1
            held = bench.core.held_bytes
            assert (greedy.pauses, other.pauses) == ((1, 1) if held > 5000 else (0, 0))
            bench.answer(number, number)
        assert (greedy.pauses, other.pauses, idle.pauses) == (0, 0, 0)
        assert bench.core.held_bytes == 0

    run(test())


def test_a_closed_outbox_accepts_nothing_and_resumes_publishers() -> None:
    async def test(loop: ClockedLoop) -> None:
        bench = Bench(held_bytes_max=1000)
        client = bench.client()
        for _ in range(6):
            bench.publish(client, 3, payload=b"p" * 100)
            await turns()
        bench.publish(client, 3)
        assert client.pauses == 1
        bench.outbox.close()
        assert client.pauses == 0
        assert bench.core.held_bytes == 0
        sent = len(bench.sent)
        run_of_one = PubRun.of([(b"orders.a", b"", b"", b"")])
        assert not bench.outbox.deliver_run(bench.capture, run_of_one, 0, 1, None)
        bench.answer(1, 1)
        bench.outbox.resend()
        await loop.advance(RESEND_AFTER_S * 3)
        assert len(bench.sent) == sent
        assert client.encoded == []

    run_clocked(test)


def test_a_local_leader_may_answer_while_the_batch_is_transmitted() -> None:
    async def test() -> None:
        bench = Bench()
        client = bench.client()

        def transmit(_group: int, session: int, number: int, _batch: PublishBatch) -> None:
            bench.outbox.answered(BatchAnswer(GROUP, session, number, number, []))

        await bench.publish_apart(client, 2)
        bench.outbox.transmit = transmit
        bench.outbox.resend()
        bench.publish(client, 1)
        await turns()
        assert not bench.core.in_flight
        assert [m for _, _, m, _ in client.encoded] == [1, 1, 1]
        await asyncio.sleep(0)

    run(test())


@pytest.mark.parametrize("silent", [False, True])
def test_publishers_of_a_removed_stream_get_no_responders(
    silent: bool,
) -> None:
    async def test(loop: ClockedLoop) -> None:
        bench = Bench(silent=silent)
        client = bench.client()
        for i in range(IN_FLIGHT_MAX + 1):  # in flight and waiting
            bench.publish(client, 1, reply=b"_INBOX.c.%d" % i, subject=b"orders.%d" % i)
            await turns()
        bench.publish(client, 1, reply=b"", subject=b"orders.no_reply")
        bench.publish(client, 1, reply=b"_INBOX.c.last", subject=b"orders.last")  # not sealed yet
        bench.outbox.removed()
        answers = [(message[0], message[2], message[3]) for _, message in client.got]
        names = [*(b"%d" % i for i in range(IN_FLIGHT_MAX + 1)), b"last"]
        assert answers == (
            []
            if silent
            else [
                (
                    b"_INBOX.c." + name,
                    b"NATS/1.0 503\r\nNats-Subject: orders.%b\r\n\r\n" % name,
                    b"",
                )
                for name in names
            ]
        )
        assert bench.core.held_bytes == 0
        bench.answer(1, 1)  # from a leader that did not know yet
        sent = len(bench.sent)
        await loop.advance(RESEND_AFTER_S * 3)
        assert len(bench.sent) == sent
        assert client.encoded == []

    run_clocked(test)
