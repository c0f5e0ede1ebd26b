"""A stream in memory forgets who published to it: what waits goes to it under a new session."""

from __future__ import annotations

from broker.accounts import Account
from broker.cluster.publish.outbox import Outbox
from broker.cluster.publish.outbox_core import OutboxCore
from broker.cluster.publish.publish_batch import BatchAnswer, PublishBatch
from broker.jetstream.publish.sessions import OutOfOrder, PublishResult, Sessions
from broker.server.routing.router import Router
from broker.subjects import Subscription
from broker.wire import PubRun
from tests.support.cluster_fakes import Client, run, turns

GROUP, SESSION = 7, 99 << 16


class Pair:
    """An outbox and the stream it talks to; what was sent waits until `answer`."""

    def __init__(self) -> None:
        self.account, router = Account("$G"), Router()
        self.sessions, self.stored = Sessions(), 0
        self.on_the_way: list[tuple[int, int, int]] = []  # session, number, rows
        self.outbox = Outbox(
            stream=b"ORDERS",
            group=GROUP,
            core=OutboxCore(SESSION),
            account=self.account,
            router=router,
            transmit=self._transmit,
            silent=False,
        )
        self.sub = Subscription(self.outbox, self.account, b"orders.>")
        self.client = Client(self.account)
        router.subscribe(self.account, Subscription(self.client, self.account, b"_I", b"", b"1"))

    def _transmit(self, _group: int, session: int, number: int, batch: PublishBatch) -> None:
        self.on_the_way.append((session, number, batch.rows))

    async def publish(self) -> None:
        self.outbox.deliver_run(self.sub, PubRun.of([(b"orders.x", b"_I", b"", b"")]), 0, 1, None)
        await turns()

    def forget(self) -> None:
        self.sessions, self.stored = Sessions(), 0

    def reach(self) -> list[BatchAnswer]:
        """Everything on the way reaches the stream; its answers."""
        answers = []
        taken, self.on_the_way = self.on_the_way, []
        for session, number, rows in taken:
            answer = self.sessions.admit(origin=1, session=session, batch_no=number)
            if answer is None:
                answer = PublishResult(1, session, number, self.stored + 1, rows, [])
                self.stored += rows
                self.sessions.remember(answer)
            if isinstance(answer, OutOfOrder):
                answers.append(BatchAnswer(GROUP, session, number, 0, [], answer.expected or -1))
            else:
                answers.append(BatchAnswer(GROUP, session, number, answer.first_seq, []))
        return answers

    def settle(self) -> None:
        while self.on_the_way:
            for answer in self.reach():
                self.outbox.answered(answer)


def test_what_waits_goes_to_a_stream_that_forgot_us() -> None:
    async def work() -> None:
        pair = Pair()
        for _ in range(3):
            await pair.publish()
        pair.settle()
        assert pair.stored == 3
        pair.forget()
        await pair.publish()
        await pair.publish()
        pair.settle()
        assert pair.stored == 2
        assert not pair.outbox.core.in_flight
        assert len(pair.client.got) + sum(e[2] for e in pair.client.encoded) == 5, (
            "each is acked once"
        )

    run(work())


def test_a_stream_that_forgets_between_the_first_answer_and_the_next_is_noticed() -> None:
    async def work() -> None:
        pair = Pair()
        await pair.publish()
        await pair.publish()
        first, _ = pair.reach()
        pair.outbox.answered(first)
        pair.forget()
        await pair.publish()
        pair.outbox.resend()
        pair.settle()
        assert pair.stored == 2
        assert not pair.outbox.core.in_flight

    run(work())


def test_late_refusals_do_not_start_a_new_session() -> None:
    """The first batch was lost once, so the others were refused; the refusals come after its
    answer. Sending them under another session would store them twice."""

    async def work() -> None:
        pair = Pair()
        for _ in range(3):
            await pair.publish()
        del pair.on_the_way[0]
        refusals = pair.reach()
        assert [refusal.expected for refusal in refusals] == [1, 1]
        pair.outbox.resend()
        first, *_ = pair.reach()
        pair.outbox.answered(first)
        for refusal in refusals:
            pair.outbox.answered(refusal)
        pair.outbox.resend()
        pair.settle()
        assert pair.stored == 3
        assert pair.outbox.core.session == SESSION

    run(work())
