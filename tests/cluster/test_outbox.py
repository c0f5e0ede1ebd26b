"""Publishes on their way to a leader that loses, repeats and reorders, and their acks."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator

import pytest

from broker.accounts import Account
from broker.cluster import outbox as module
from broker.cluster.outbox import (
    BATCH_BYTES_MAX,
    BATCH_ROWS_MAX,
    IN_FLIGHT_MAX,
    RESEND_AFTER_S,
    Batch,
    Outbox,
    Published,
)
from broker.jetstream.sessions import OutOfOrder, PublishResult, Sessions
from broker.server.router import Router
from broker.store.block import Block
from broker.subjects import Subscription
from broker.wire import PubRun
from raft import NodeId
from tests.cluster.fakes import Client, ClockedLoop, run, run_clocked, turns

GROUP, SESSION, LEADER = 7, 99, NodeId(3)


class Bench:
    """An outbox, its account, and everything that was transmitted."""

    def __init__(self, *, silent: bool = False, extra: bytes = b"") -> None:
        self.account = Account("$G")
        self.router = Router()
        self.sent: list[Batch] = []
        self.leader: NodeId | None = LEADER
        self.outbox = Outbox(
            stream=b"ORDERS",
            group=GROUP,
            session=SESSION,
            account=self.account,
            router=self.router,
            transmit=self._transmit,
            silent=silent,
            ack_extra=extra,
        )
        self.capture = Subscription(self.outbox, self.account, b"orders.>")
        self.account.subs.insert(self.capture)

    def _transmit(self, outbox: Outbox, batch: Batch) -> NodeId | None:
        assert outbox is self.outbox
        self.sent.append(batch)
        return self.leader

    def client(self, inbox: bytes = b"_INBOX.c.*", sid: bytes = b"5") -> Client:
        client = Client(self.account)
        self.router.subscribe(self.account, Subscription(client, self.account, inbox, b"", sid))
        return client

    def publish(
        self,
        client: Client,
        count: int,
        *,
        reply: bytes = b"_INBOX.c.%d",
        subject: bytes = b"orders.new",
        payload: bytes = b"x",
    ) -> None:
        replies = [reply % i if b"%" in reply else reply for i in range(count)]
        messages = [(subject, one, b"", payload) for one in replies]
        self.router.publish_run(client, PubRun.of(messages))

    @property
    def numbers(self) -> list[int]:
        return [batch.number for batch in self.sent]

    def answer(
        self, number: int, first_seq: int, exceptions: list[tuple[int, bytes]] | None = None
    ) -> None:
        self.outbox.answered(Published(GROUP, SESSION, number, first_seq, exceptions or []))

    def refuse(self, number: int, expected: int) -> None:
        self.outbox.answered(Published(GROUP, SESSION, number, 0, [], expected=expected))


def acks(data: bytes) -> Iterator[tuple[bytes, bytes, dict[str, object]]]:
    """reply, sid, body of the MSG lines a client was sent in bulk."""
    while data:
        line, _, rest = data.partition(b"\r\n")
        word, reply, sid, size = line.split(b" ")
        assert word == b"MSG"
        yield reply, sid, json.loads(rest[: int(size)])
        assert rest[int(size) : int(size) + 2] == b"\r\n"
        data = rest[int(size) + 2 :]


def bulk_seqs(client: Client) -> list[object]:
    return [body["seq"] for _, data, _, _ in client.encoded for _, _, body in acks(data)]


def bodies(client: Client) -> list[tuple[bytes, dict[str, object]]]:
    """Acks that came one by one."""
    return [(message[0], json.loads(message[3])) for _, message in client.got]


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
        assert block.first_seq == 0  # nobody but apply gives out sequences

    run(test())


def test_at_most_four_batches_are_under_way() -> None:
    async def test() -> None:
        bench = Bench()
        client = bench.client()
        for _ in range(IN_FLIGHT_MAX + 3):
            bench.publish(client, 1)
            await turns()
        assert bench.numbers == [1, 2, 3, 4]
        bench.answer(1, 1)
        # What waited meanwhile goes together: a long wait makes larger batches, not more.
        assert bench.numbers == [1, 2, 3, 4, 5]
        assert bench.sent[-1].rows == 3

    run(test())


@pytest.mark.parametrize("payload", [0, 10, 1000, 200_000])
def test_no_batch_outgrows_its_bounds(payload: int) -> None:
    async def test() -> None:
        bench = Bench()
        client = bench.client()
        count = 2 * BATCH_ROWS_MAX + 5 if payload < 1000 else 5000 if payload == 1000 else 23
        for _ in range(2):
            bench.publish(client, count, payload=b"p" * payload)
        await turns()
        number = 0
        while bench.outbox.in_flight:
            number += 1
            bench.answer(number, number * 100_000)
        blocks = [Block(batch.block, verify=False) for batch in bench.sent]
        assert sum(block.rows for block in blocks) == 2 * count
        assert max(len(batch.block) for batch in bench.sent) <= BATCH_BYTES_MAX
        assert max(block.rows for block in blocks) <= BATCH_ROWS_MAX
        # ... and they are filled: all but the last leave no room for one more row.
        row = payload + len(b"orders.new") + 20
        for batch in bench.sent[:-1]:
            full = len(batch.block) + row + 64 > BATCH_BYTES_MAX or batch.rows == BATCH_ROWS_MAX
            assert full, (len(batch.block), batch.rows)
        assert bench.outbox.held_bytes == 0

    run(test())


def test_long_subjects_count_too() -> None:
    async def test() -> None:
        bench = Bench()
        client = bench.client()
        bench.publish(client, 600, subject=b"orders." + b"s" * 3900)
        await turns()
        assert sum(batch.rows for batch in bench.sent) == 600
        assert max(len(batch.block) for batch in bench.sent) <= BATCH_BYTES_MAX

    run(test())


def test_a_message_larger_than_a_batch_goes_alone() -> None:
    async def test() -> None:
        bench = Bench()
        client = bench.client()
        bench.publish(client, 1)
        bench.publish(client, 1, payload=b"p" * (BATCH_BYTES_MAX + 1))
        bench.publish(client, 1)
        await turns()
        assert [batch.rows for batch in bench.sent] == [1, 1, 1]

    run(test())


# -- acks -----------------------------------------------------------------------------------------


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
def test_anything_else_than_one_plain_inbox_is_acked_one_by_one(reason: str) -> None:
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
        assert not bench.outbox.in_flight

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
        assert [batch.number for batch in bench.outbox.in_flight] == [1]

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
        assert bench.outbox.held_bytes == 0

    run(test())


def test_a_client_that_left_is_missed_by_nobody() -> None:
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
        assert not bench.outbox.in_flight

    run(test())


# -- leaders come and go --------------------------------------------------------------------------


def test_unanswered_batches_are_sent_again_in_order() -> None:
    async def test() -> None:
        bench = Bench()
        client = bench.client()
        for _ in range(6):
            bench.publish(client, 1)
            await turns()
        bench.answer(2, 2)
        bench.sent.clear()
        bench.outbox.resend()
        assert bench.numbers == [1, 3, 4, 5]
        assert [batch.sent_to for batch in bench.outbox.in_flight] == [LEADER] * 4

    run(test())


def test_answers_late_twice_and_out_of_order() -> None:
    async def test() -> None:
        bench = Bench()
        client = bench.client()
        for _ in range(3):
            bench.publish(client, 1)
            await turns()
        for number, seq in ((3, 3), (1, 1), (3, 3), (1, 1), (9, 9), (2, 2), (2, 2)):
            bench.answer(number, seq)
        assert bulk_seqs(client) == [3, 1, 2]
        assert bench.outbox.held_bytes == 0

    run(test())


def test_answers_of_another_session_are_not_ours() -> None:
    async def test() -> None:
        bench = Bench()
        client = bench.client()
        bench.publish(client, 1)
        await turns()
        bench.outbox.answered(Published(GROUP, SESSION - 1, 1, 5, []))
        assert client.encoded == []
        assert len(bench.outbox.in_flight) == 1

    run(test())


def test_a_lost_batch_is_sent_again_once_with_those_behind_it() -> None:
    async def test() -> None:
        bench = Bench()
        client = bench.client()
        for _ in range(4):
            bench.publish(client, 1)
            await turns()
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
        for _ in range(4):
            bench.publish(client, 1)
            await turns()
        bench.sent.clear()
        bench.refuse(4, expected=3)
        assert bench.numbers == [1, 2, 3, 4]

    run(test())


def test_overdue_batches_are_sent_again_until_answered() -> None:
    async def test(loop: ClockedLoop) -> None:
        bench = Bench()
        client = bench.client()
        bench.leader = None
        bench.publish(client, 1)
        await turns()
        assert [batch.sent_to for batch in bench.outbox.in_flight] == [None]
        await loop.advance(RESEND_AFTER_S + 0.01)
        await loop.advance(RESEND_AFTER_S + 0.01)
        assert bench.numbers == [1, 1, 1]
        bench.answer(1, 1)
        bench.publish(client, 1)
        await turns()
        # The timer was armed for the first batch: the second gets its whole time.
        await loop.advance(RESEND_AFTER_S * 1.1)
        assert bench.numbers == [1, 1, 1, 2]
        await loop.advance(RESEND_AFTER_S * 1.1)
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
        under_way: list[Batch] = []
        answers: list[Published] = []

        def apply(batch: Batch) -> None:
            known = sessions.admit(origin=1, session=SESSION, batch_no=batch.number)
            if known is None:
                block = Block(batch.block, verify=False)
                known = PublishResult(1, SESSION, batch.number, len(stored) + 1, block.rows, [])
                stored.extend(block.data(row) for row in range(block.rows))
                sessions.remember(known)
            if isinstance(known, OutOfOrder):
                answer = Published(GROUP, SESSION, batch.number, 0, [], expected=known.expected)
            else:
                answer = Published(GROUP, SESSION, batch.number, known.first_seq, [])
            answers.append(answer)

        published = 0
        lossy = True
        while published < 200 or bench.outbox.in_flight or under_way or answers:
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
        assert bench.outbox.held_bytes == 0

    run_clocked(test)


# -- back-pressure and the end --------------------------------------------------------------------


def test_too_much_held_pauses_publishers_and_half_of_it_resumes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "HELD_BYTES_MAX", 10_000)

    async def test() -> None:
        bench = Bench()
        bench.leader = None
        greedy, other, idle = (bench.client(b"_INBOX.%b.*" % name) for name in (b"c", b"o", b"i"))
        for _ in range(3):
            bench.publish(greedy, 1, payload=b"p" * 3000)
            await turns()
        assert greedy.pauses == 0
        for _ in range(4):
            bench.publish(greedy, 1, payload=b"p" * 3000)
            await turns()
        bench.publish(other, 1)
        assert (greedy.pauses, other.pauses, idle.pauses) == (1, 1, 0)  # once each
        await turns()
        number = 0
        while bench.outbox.in_flight:
            number += 1
            held = bench.outbox.held_bytes
            assert (greedy.pauses, other.pauses) == ((1, 1) if held > 5000 else (0, 0))
            bench.answer(number, number)
        assert (greedy.pauses, other.pauses, idle.pauses) == (0, 0, 0)
        assert bench.outbox.held_bytes == 0

    run(test())


def test_a_closed_outbox_takes_nothing_and_lets_everybody_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "HELD_BYTES_MAX", 1000)

    async def test(loop: ClockedLoop) -> None:
        bench = Bench()
        client = bench.client()
        for _ in range(6):
            bench.publish(client, 3, payload=b"p" * 100)
            await turns()
        bench.publish(client, 3)
        assert client.pauses == 1
        bench.outbox.close()
        assert client.pauses == 0
        assert bench.outbox.held_bytes == 0
        sent = len(bench.sent)
        run_of_one = PubRun.of([(b"orders.a", b"", b"", b"")])
        assert not bench.outbox.deliver_run(bench.capture, run_of_one, 0, 1, None)
        bench.answer(1, 1)
        bench.outbox.resend()
        await loop.advance(RESEND_AFTER_S * 3)
        assert len(bench.sent) == sent
        assert client.encoded == []

    run_clocked(test)


def test_a_leader_in_this_process_may_answer_while_it_is_handed_the_batch() -> None:
    async def test() -> None:
        bench = Bench()
        client = bench.client()

        def transmit(outbox: Outbox, batch: Batch) -> NodeId:
            outbox.answered(Published(GROUP, SESSION, batch.number, batch.number, []))
            return LEADER

        for _ in range(2):
            bench.publish(client, 1)
            await turns()
        bench.outbox.transmit = transmit
        bench.outbox.resend()
        bench.publish(client, 1)
        await turns()
        assert not bench.outbox.in_flight
        assert [m for _, _, m, _ in client.encoded] == [1, 1, 1]
        await asyncio.sleep(0)

    run(test())
