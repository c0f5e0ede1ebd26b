"""Advisories of a delivery that ends a great many messages are sent in turns of their account."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.cluster.observe import advisories as module
from broker.cluster.observe.advisories import AT_ONCE, Advisories
from broker.jetstream.delivery.effects import Advisory

CONSUMER = cast(Any, SimpleNamespace(name="C"))


class Node:
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.turns: list[Callable[[], None]] = []
        self.wanted = True
        router = SimpleNamespace(
            has_interest=lambda *_: self.wanted, publish=lambda *given: self.sent.append(given[-1])
        )
        info = SimpleNamespace(domain="")
        self.advisories = Advisories(
            cast(Any, router), cast(Any, info), lambda _: None, lambda: 1,
            lambda act, _: self.turns.append(act),
        )  # fmt: skip
        self.account = cast(Any, SimpleNamespace(name="A"))

    def ended(self, first: int, count: int) -> None:
        facts = [Advisory("max_deliver", first + at, 1) for at in range(count)]
        self.advisories.of_delivery(self.account, "S", CONSUMER, facts)

    def sequences(self) -> list[int]:
        return [int(body.split(b'"stream_seq":')[1].split(b",")[0]) for body in self.sent]


def test_many_are_sent_in_turns_and_in_order() -> None:
    node = Node()
    node.ended(1, 100)
    assert len(node.sent) == AT_ONCE
    node.ended(101, 5)  # behind those that wait
    assert len(node.sent) == AT_ONCE
    while node.turns:
        before = len(node.sent)
        node.turns.pop(0)()
        assert len(node.sent) - before <= AT_ONCE
    assert node.sequences() == list(range(1, 106))
    node.ended(200, 1)
    assert len(node.sent) == 106  # at once again


def test_those_that_wait_are_bounded_and_nobody_waits_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 50)
    node = Node()
    node.ended(1, 1000)
    while node.turns:
        node.turns.pop(0)()
    assert len(node.sent) == AT_ONCE + 50
    assert node.advisories.dropped == 1000 - len(node.sent)
    node.wanted = False
    node.ended(1, 1000)
    assert not node.turns
