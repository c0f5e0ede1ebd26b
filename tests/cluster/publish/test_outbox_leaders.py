"""Publishes on their way to leaders that come and go, behind links that lose and repeat."""

from __future__ import annotations

import random

import pytest

from broker.cluster.publish.outbox_core import IN_FLIGHT_MAX, RESEND_AFTER_MAX_S, RESEND_AFTER_S
from broker.cluster.publish.publish_batch import BatchAnswer, PublishBatch
from broker.jetstream.publish.sessions import (
    RESULTS_KEPT,
    RESULTS_KEPT_MIN,
    OutOfOrder,
    PublishResult,
    Sessions,
)
from broker.store.block.block import Block
from tests.support.cluster_fakes import ClockedLoop, run, run_clocked, turns
from tests.support.outbox_rig import GROUP, SESSION, Bench, acks, bulk_seqs


def test_unanswered_batches_are_sent_again_in_order() -> None:
    async def test() -> None:
        bench = Bench()
        client = bench.client()
        await bench.publish_apart(client, 6)
        bench.answer(2, 2)
        bench.sent.clear()
        bench.outbox.resend()
        assert bench.numbers == [1, 3, 4]

    run(test())


def test_answers_late_twice_and_out_of_order() -> None:
    async def test() -> None:
        bench = Bench()
        client = bench.client()
        await bench.publish_apart(client, 3)
        for number, seq in ((3, 3), (1, 1), (3, 3), (1, 1), (9, 9), (2, 2), (2, 2)):
            bench.answer(number, seq)
        assert bulk_seqs(client) == [3, 1, 2]
        assert bench.core.held_bytes == 0

    run(test())


def test_answers_of_another_session_are_not_ours() -> None:
    async def test() -> None:
        bench = Bench()
        client = bench.client()
        bench.publish(client, 1)
        await turns()
        bench.outbox.answered(BatchAnswer(GROUP, SESSION - 1, 1, 5, []))
        assert client.encoded == []
        assert len(bench.core.in_flight) == 1

    run(test())


def test_a_lost_batch_is_sent_again_once_with_those_behind_it() -> None:
    async def test() -> None:
        bench = Bench()
        client = bench.client()
        await bench.publish_apart(client, 4)
        bench.sent.clear()
        for number in (2, 3, 4):  # the first was lost on the way
            bench.refuse(number, expected=1)
        assert bench.numbers == [1, 2, 3, 4]
        for number in (1, 2, 3):
            bench.answer(number, number)
        bench.refuse(4, expected=1)  # late: the first was answered meanwhile
        bench.answer(4, 4)
        bench.refuse(4, expected=1)
        assert bench.numbers == [1, 2, 3, 4]

    run(test())


def test_a_leader_that_expects_a_later_batch_gets_the_earlier_ones_as_well() -> None:
    """It has applied 1 and 2, but the answers were lost with the link: repeats fetch them."""

    async def test() -> None:
        bench = Bench()
        client = bench.client()
        await bench.publish_apart(client, 4)
        bench.sent.clear()
        bench.refuse(4, expected=3)
        assert bench.numbers == [1, 2, 3, 4]

    run(test())


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


@pytest.mark.parametrize("seed", range(12))
def test_whatever_links_and_leaders_do_each_publish_is_stored_and_acked_once(seed: int) -> None:
    """The stream's own session table behind links that lose, repeat and delay."""

    async def test(loop: ClockedLoop) -> None:
        dice = random.Random(seed)
        bench = Bench()
        client = bench.client()
        sessions, stored = Sessions(), list[bytes]()
        under_way: list[PublishBatch] = []
        answers: list[BatchAnswer] = []

        def apply(batch: PublishBatch) -> None:
            known = sessions.admit(origin=1, session=SESSION, batch_no=batch.number)
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
                bench.outbox.resend()  # another leader
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
        assert stored == expected, f"in order and once, seed {seed}"
        acked = [(r, b["seq"]) for _, data, _, _ in client.encoded for r, _, b in acks(data)]
        assert sorted(acked, key=lambda ack: int(str(ack[1]))) == [
            (reply, seq) for seq, reply in enumerate(expected, 1)
        ]
        assert bench.core.held_bytes == 0

    run_clocked(test)


def test_no_batch_is_sent_so_far_ahead_that_the_oldest_could_be_forgotten() -> None:
    """The stream remembers the last results of a node. One whose answer got lost must be asked
    for again before they are pushed out by those that followed."""

    async def test(loop: ClockedLoop) -> None:
        bench = Bench()
        client = bench.client()
        for _ in range(3 * RESULTS_KEPT):
            bench.publish(client, 1)
            await turns()
            for batch in bench.core.in_flight.copy():
                if batch.number != 1:  # its answer was lost, the others' were not
                    bench.answer(batch.number, batch.number)
        assert max(bench.numbers) == IN_FLIGHT_MAX < RESULTS_KEPT_MIN
        bench.answer(1, 1)
        await turns()
        assert max(bench.numbers) > IN_FLIGHT_MAX

    run_clocked(test)


def test_an_answer_that_overtakes_another_shows_that_the_other_is_lost() -> None:
    async def test() -> None:
        bench = Bench()
        client = bench.client()
        await bench.publish_apart(client, 4)
        bench.sent.clear()
        bench.answer(3, 3)
        assert bench.numbers == [1, 2]  # at once, and nothing that was not overtaken
        bench.answer(1, 1)
        bench.answer(2, 2)
        bench.answer(4, 4)
        assert bench.numbers == [1, 2]

    run(test())


def test_a_result_nobody_knows_is_not_asked_for_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    async def test(loop: ClockedLoop) -> None:
        bench = Bench()
        client = bench.client()
        await bench.publish_apart(client, 2)
        bench.sent.clear()
        bench.refuse(1, expected=500)
        bench.refuse(1, expected=500)  # of an earlier sending
        assert [batch.number for batch in bench.core.in_flight] == [2]
        bench.answer(2, 2)
        await loop.advance(RESEND_AFTER_S * 3)
        assert bench.sent == []
        assert bulk_seqs(client) == [2]
        assert bench.core.held_bytes == 0

    run_clocked(test)
    assert "result of batch 1 is no longer known" in caplog.text
    assert caplog.text.count("no longer known") == 1


def test_batches_nobody_answers_are_sent_again_less_and_less_often() -> None:
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
        assert wait_s == RESEND_AFTER_MAX_S
        bench.outbox.resend()  # another leader: it is asked as eagerly as the first
        await loop.advance(RESEND_AFTER_S)
        assert len(bench.sent) == 10

    run_clocked(test)


def test_an_answer_makes_the_next_batch_as_urgent_as_the_first() -> None:
    async def test(loop: ClockedLoop) -> None:
        bench = Bench()
        client = bench.client()
        bench.publish(client, 1)
        await turns()
        for _ in range(4):
            await loop.advance(RESEND_AFTER_MAX_S)
        bench.answer(1, 1)
        bench.sent.clear()
        bench.publish(client, 1)
        await turns()
        await loop.advance(RESEND_AFTER_S)
        assert bench.numbers == [2, 2]

    run_clocked(test)
