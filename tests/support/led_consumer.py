"""A leadership of one stream with a pull consumer, without a Raft group around it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.accounts import Account
from broker.cluster.replica import leadership as module
from broker.cluster.replica.leadership import DeliveryServices, Leadership
from broker.jetstream.delivery.effects import Deliver
from tests.support.cluster_fakes import turns
from tests.support.consumer_rig import START, Bench, S

PULL = b"$JS.API.CONSUMER.MSG.NEXT.S.C"


class LedConsumer:
    """A leadership of one stream with a pull consumer, clocks that the test sets, and a record of
    what it sends and proposes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.boot_ns, self.offset_ns = 5 * S, START
        self.sent: list[int] = []
        self.proposed: list[Any] = []
        monkeypatch.setattr(module, "MessageSender", lambda *_: self)
        monkeypatch.setattr(Leadership, "_has_interest", lambda *_: True)
        self.bench = Bench(durable_name="C", ack_policy="explicit", ack_wait=30 * S)
        self.bench.delivery.close("")
        effects = SimpleNamespace(start=lambda: None, stop=lambda: None, republished=())
        self.expires_ns: int | None = None  # the date at which a message does
        stream = SimpleNamespace(
            consumers={"C": self.bench.of},
            leader_effects=effects,
            next_expiry=lambda _: self.expires_ns,
            due_commands=lambda now: ["expire"] if now >= (self.expires_ns or now + 1) else [],
        )
        replica = SimpleNamespace(
            name="S",
            account=Account("A"),
            stream=stream,
            propose_all=self.propose_all,
            stamp=lambda: self.boot_ns + self.offset_ns,
        )
        unused = cast(Any, None)
        services = DeliveryServices(
            router=unused,
            send_frame=unused,
            later=unused,
            interest=unused,
            advisories=cast(Any, SimpleNamespace(of_delivery=lambda *_: None)),
            domain=b"",
            now_ns=lambda: self.boot_ns + self.offset_ns,
            steady_ns=lambda: self.boot_ns,
        )
        self.leadership = Leadership(cast(Any, replica), services)

    def propose_all(self, proposed: list[Any], _: list[bytes]) -> None:
        self.proposed += proposed

    def deliver(self, effect: Deliver, _: str, *, alone: bool) -> None:
        self.sent += [effect.rows.seq(index) for index in effect.indices]

    def status(self, *_: bytes) -> None:
        """Statuses are not looked at."""

    async def pull(self) -> list[int]:
        """What is sent at once after one more pull request."""
        self.sent.clear()
        self.leadership.take_request((0, PULL, b"r", b"", b"1"))
        await turns()
        return self.sent
