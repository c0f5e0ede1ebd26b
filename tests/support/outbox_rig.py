"""An outbox under test: records what it transmits and what its clients receive."""

from __future__ import annotations

import json
from collections.abc import Iterator

from broker.accounts import Account
from broker.cluster.publish.held_bytes import AccountPublishes, HeldPublishes
from broker.cluster.publish.outbox_core import HELD_BYTES_MAX, OutboxCore
from broker.cluster.publish.outbox_shell import Outbox
from broker.cluster.publish.outbox_turns import OutboxTurns
from broker.cluster.publish.publish_batch import BatchAnswer, PublishBatch
from broker.server.routing.router import Router
from broker.subjects import Subscription
from broker.wire import PubRun
from tests.support.cluster_fakes import Client, turns

GROUP, SESSION = 7, 99


class Bench:
    """An outbox, its account, and every batch that was transmitted."""

    def __init__(
        self,
        *,
        silent: bool = False,
        extra: bytes = b"",
        held_bytes_max: int = HELD_BYTES_MAX,
        publishes: AccountPublishes | None = None,
    ) -> None:
        self.account = Account("$G")
        self.router = Router()
        self.sent: list[PublishBatch] = []
        self.core = OutboxCore(SESSION, held_bytes_max=held_bytes_max)
        self.outbox = Outbox(
            stream=b"ORDERS",
            group=GROUP,
            core=self.core,
            account=self.account,
            router=self.router,
            transmit=self._transmit,
            publishes=publishes or HeldPublishes().of("$G"),
            turns=OutboxTurns(),
            silent=silent,
            ack_extra=extra,
        )
        self.capture = Subscription(self.outbox, self.account, b"orders.>")
        self.account.subs.insert(self.capture)

    def _transmit(self, group: int, _session: int, _number: int, batch: PublishBatch) -> None:
        assert group == GROUP
        self.sent.append(batch)

    def client(self, inbox: bytes = b"_INBOX.c.*", sid: bytes = b"5") -> Client:
        client = Client(self.account)
        self.router.subscribe(self.account, Subscription(client, self.account, inbox, b"", sid))
        return client

    async def publish_apart(self, client: Client, batches: int) -> None:
        """One message per turn of the loop, so that each makes a batch."""
        for _ in range(batches):
            self.publish(client, 1)
            await turns()

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
        self.outbox.answered(BatchAnswer(GROUP, SESSION, number, first_seq, exceptions or []))

    def refuse(self, number: int, expected: int) -> None:
        self.outbox.answered(BatchAnswer(GROUP, SESSION, number, 0, [], expected=expected))


def acks(data: bytes) -> Iterator[tuple[bytes, bytes, dict[str, object]]]:
    """Reply, sid and body of each MSG in the bytes of a bulk delivery."""
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
    """Acks that were delivered one by one: reply subject and body."""
    return [(message[0], json.loads(message[3])) for _, message in client.got]
