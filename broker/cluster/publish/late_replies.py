"""Answers to publishes of clients that are reconnecting to another node while this one stops.

Owns: the answers that have no recipient yet.
May not touch: connections; once a client has subscribed to its inbox on another node, that node's
interest routes the answer.
Bound: HELD_MAX answers; further ones are dropped, and their publishers time out."""

from __future__ import annotations

from collections import deque
from typing import Final

from broker.accounts import Account
from broker.cluster.publish.pub_acks import ReplyRouter

HELD_MAX: Final = 100_000

_Reply = tuple[Account, bytes, bytes, bytes, bytes]


class LateReplies:
    """The router for answers to publishes: while `holding`, an answer without a recipient is kept
    and retried."""

    def __init__(self, router: ReplyRouter) -> None:
        self._router = router
        self._held: deque[_Reply] = deque(maxlen=HELD_MAX)
        self.holding = False

    def publish(
        self, account: Account, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> int:
        delivered = self._router.publish(account, subject, reply, headers, payload)
        if not delivered and self.holding:
            self._held.append((account, subject, reply, headers, payload))
        return delivered

    def all_delivered(self) -> bool:
        """Retry the held answers. Returns whether none is left."""
        for _ in range(len(self._held)):
            self.publish(*self._held.popleft())
        return not self._held
