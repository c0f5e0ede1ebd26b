"""Answers that wait until their client has arrived at another node."""

from __future__ import annotations

from broker.accounts import Account
from broker.cluster.publish.late_replies import LateReplies


class FakeRouter:
    def __init__(self) -> None:
        self.recipients: set[bytes] = set()
        self.delivered: list[tuple[bytes, bytes]] = []

    def publish(
        self, account: Account, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> int:
        if subject not in self.recipients:
            return 0
        self.delivered.append((subject, payload))
        return 1


def test_an_answer_without_a_recipient_is_kept_until_there_is_one() -> None:
    router, account = FakeRouter(), Account("A")
    late = LateReplies(router)
    late.publish(account, b"inbox.0", b"", b"", b"before")
    assert late.all_delivered(), "nothing is kept while the node does not stop"
    late.holding = True
    late.publish(account, b"inbox.1", b"", b"", b"one")
    late.publish(account, b"inbox.2", b"", b"", b"two")
    late.publish(account, b"inbox.1", b"", b"", b"three")
    assert not late.all_delivered()
    router.recipients.add(b"inbox.1")
    assert not late.all_delivered()
    assert router.delivered == [(b"inbox.1", b"one"), (b"inbox.1", b"three")], "in order, once"
    router.recipients.add(b"inbox.2")
    assert late.all_delivered()
    assert router.delivered[2:] == [(b"inbox.2", b"two")]
