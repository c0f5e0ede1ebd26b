"""The outbox with timers, real blocks and real sessions. The rules alone: test_outbox_core.py."""

from __future__ import annotations

import random

import pytest

from broker.cluster.publish.outbox_core import RESEND_AFTER_MAX_S, RESEND_AFTER_S
from broker.cluster.publish.publish_batch import STALE_SESSION, BatchAnswer, PublishBatch
from broker.jetstream.publish.sessions import OutOfOrder, PublishResult, Sessions
from broker.store.block.codec import Block
from tests.support.cluster_fakes import ClockedLoop, run, run_clocked, turns
from tests.support.outbox_rig import GROUP, SESSION, Bench, acks, bulk_seqs


def test_overdue_batches_are_sent_again_until_answered() -> None:
    async def test(loop: ClockedLoop) -> None:
        bench = Bench()
        client = bench.client()
        bench.publish(client, 1)
        await turns()
        assert bench.numbers == [1]
        await loop.advance(RESEND_AFTER_S + 0.01)
        await loop.advance(2 * RESEND_AFTER_S + 0.01)
        assert bench.numbers == [1, 1, 1]
        bench.answer(1, 1)
        bench.publish(client, 1)
        await turns()
        await loop.advance(RESEND_AFTER_S * 0.8)
        assert bench.numbers == [1, 1, 1, 2]
        await loop.advance(RESEND_AFTER_S * 0.3)
        assert bench.numbers == [1, 1, 1, 2, 2]
        bench.answer(2, 2)
        await loop.advance(RESEND_AFTER_S * 2)
        assert bench.numbers == [1, 1, 1, 2, 2]

    run_clocked(test)


def test_the_timer_follows_the_back_off() -> None:
    async def test(loop: ClockedLoop) -> None:
        bench = Bench()
        client = bench.client()
        bench.publish(client, 1)
        await turns()
        wait_s = RESEND_AFTER_S
        for sent in range(2, 9):
            await loop.advance(wait_s * 0.8)
            assert len(bench.sent) == sent - 1
            await loop.advance(wait_s * 0.2)
            assert len(bench.sent) == sent
            wait_s = min(wait_s * 2, RESEND_AFTER_MAX_S)
        bench.outbox.resend()  # a new leader is retried as fast as the first one
        await loop.advance(RESEND_AFTER_S)
        assert len(bench.sent) == 10
        bench.answer(1, 1)
        bench.publish(client, 1)
        await turns()
        await loop.advance(RESEND_AFTER_S)
        assert bench.numbers[-2:] == [2, 2]

    run_clocked(test)


def test_rows_collected_while_the_window_was_full_leave_with_the_answer() -> None:
    async def test() -> None:
        bench = Bench()
        client = bench.client()
        await bench.publish_apart(client, 6)
        assert bench.numbers == [1, 2, 3, 4]
        bench.answer(1, 1)
        assert bench.numbers == [1, 2, 3, 4, 5]  # at once, not in the next turn
        assert bench.sent[-1].rows == 2

    run(test())


def test_a_lost_result_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test(loop: ClockedLoop) -> None:
        bench = Bench()
        client = bench.client()
        await bench.publish_apart(client, 2)
        bench.sent.clear()
        bench.refuse(1, expected=500)
        bench.refuse(1, expected=500)  # the answer to an earlier send
        bench.answer(2, 2)
        await loop.advance(RESEND_AFTER_S * 3)
        assert bench.sent == []
        assert bulk_seqs(client) == [2]

    run_clocked(test)
    assert "result of batch 1 is no longer known" in caplog.text
    assert caplog.text.count("no longer known") == 1


def test_a_later_run_of_this_node_closes_the_outbox(caplog: pytest.LogCaptureFixture) -> None:
    async def test(loop: ClockedLoop) -> None:
        bench = Bench()
        client = bench.client()
        await bench.publish_apart(client, 5)  # the last row is collected, but not sealed
        bench.refuse(1, expected=STALE_SESSION)
        assert not bench.outbox.unanswered
        bench.publish(client, 1)
        bench.sent.clear()
        await loop.advance(RESEND_AFTER_S * 3)
        assert (bench.sent, client.encoded) == ([], [])

    run_clocked(test)
    assert "a later run of the same server name has published; 4 batches are dropped" in caplog.text


@pytest.mark.parametrize("seed", range(12))
def test_each_publish_is_stored_and_acked_once_behind_faulty_links(seed: int) -> None:
    """The stream's own session table, real blocks and acks; links lose, repeat and delay."""

    async def test(loop: ClockedLoop) -> None:
        dice = random.Random(seed)
        bench = Bench()
        client = bench.client()
        sessions, stored = Sessions(), list[bytes]()
        under_way: list[PublishBatch] = []
        answers: list[BatchAnswer] = []

        def apply(batch: PublishBatch) -> None:
            known = sessions.admit(from_node=1, session=SESSION, batch_no=batch.number)
            if known is None:
                block = Block(batch.block, verify=False)
                known = PublishResult(1, SESSION, batch.number, len(stored) + 1, block.rows, [])
                stored.extend(block.data(row) for row in range(block.rows))
                sessions.remember(known)
            if isinstance(known, OutOfOrder):
                answer = BatchAnswer(GROUP, SESSION, batch.number, 0, [], expected=known.expected)
            else:
                answer = BatchAnswer(GROUP, SESSION, batch.number, known.first_seq, [])
            answers.append(answer)

        published = 0
        lossy = True
        while published < 200 or bench.core.in_flight or under_way or answers:
            if published < 200:
                for _ in range(dice.randrange(5)):
                    reply = b"_INBOX.c.%d" % published
                    bench.publish(client, 1, reply=reply, payload=reply)
                    published += 1
            else:
                lossy = False
            await turns()
            under_way += bench.sent
            bench.sent.clear()
            if lossy and dice.random() < 0.2:
                under_way.clear()  # the link broke
            if dice.random() < 0.1:
                bench.outbox.resend()  # a new leader
            for batch in under_way[:]:
                if dice.random() < 0.7:
                    under_way.remove(batch)
                    apply(batch)
                else:
                    break  # links keep their order
            if lossy and dice.random() < 0.2:
                answers.clear()
            while answers and dice.random() < 0.8:
                answer = answers.pop(dice.randrange(len(answers)))
                bench.outbox.answered(answer)
                if lossy and dice.random() < 0.2:
                    bench.outbox.answered(answer)
            if dice.random() < 0.2:
                await loop.advance(RESEND_AFTER_S)
        expected = [b"_INBOX.c.%d" % i for i in range(published)]
        assert stored == expected, f"once each, in order; seed {seed}"
        acked = [(r, b["seq"]) for _, data, _, _ in client.encoded for r, _, b in acks(data)]
        assert sorted(acked, key=lambda ack: int(str(ack[1]))) == [
            (reply, seq) for seq, reply in enumerate(expected, 1)
        ]
        assert bench.core.held_bytes == 0

    run_clocked(test)
