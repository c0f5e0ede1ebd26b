"""Interest in deliver subjects: who is notified, and which subscriptions bind a push consumer."""

from __future__ import annotations

from typing import Any, cast

import pytest

from broker.accounts import Account
from broker.cluster.replica.push_interest import PushInterest
from broker.subjects import Subscription
from tests.support.cluster_fakes import Client


class Peers:
    """Subscriptions of other nodes."""

    def __init__(self, *exact: tuple[bytes, bytes]) -> None:
        self.exact = exact

    def exact_at_peer(self, account: Account, subject: bytes, *, queue: bytes = b"") -> bool:
        return (subject, queue) in self.exact


class Watcher:
    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def interest_changed(self, subject: bytes) -> None:
        self.seen.append(subject)


def test_watchers_of_the_subject_and_account_are_notified() -> None:
    interest = PushInterest(Peers())
    one, two, other = Watcher(), Watcher(), Watcher()
    interest.watch("A", b"d", one)
    interest.watch("A", b"d", two)
    interest.watch("B", b"d", other)
    interest.changed("A", b"d")
    interest.unwatch("A", b"d", one)
    interest.unwatch("A", b"d", one)
    interest.changed("A", b"d")
    interest.changed("A", b"e")
    assert (one.seen, two.seen, other.seen) == ([b"d"], [b"d", b"d"], [])


@pytest.mark.parametrize(
    ("subject", "queue", "group", "bound"),
    [
        (b"d.x", b"", b"", True),
        (b"d.*", b"", b"", False),  # a wildcard does not bind
        (b"d.x", b"g", b"g", True),
        (b"d.x", b"h", b"g", False),
        (b"d.x", b"", b"g", False),
        (b"d.x", b"g", b"", False),
    ],
)
def test_only_exact_subscriptions_bind(
    subject: bytes, queue: bytes, group: bytes, *, bound: bool
) -> None:
    account = Account("A")
    account.subs.insert(Subscription(cast(Any, Client(account)), account, subject, queue, b"1"))
    assert PushInterest(Peers()).is_bound(account, b"d.x", group) is bound


def test_a_subscription_on_another_node_binds() -> None:
    interest = PushInterest(Peers((b"d.x", b"g")))
    assert interest.is_bound(Account("A"), b"d.x", b"g")
    assert not interest.is_bound(Account("A"), b"d.x", b"")
