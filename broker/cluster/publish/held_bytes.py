"""Backpressure per account: how many bytes of unanswered publishes it may have on this node.

Owns: the bytes that the outboxes of each account hold, and the publishers paused because of them.
May not touch: the outboxes; each reports changes of what it holds.
An outbox bounds itself (outbox_core.py), but an account may have a thousand streams. Once an
account exceeds its share of the node, reading from its publishers is paused until half of the share
is answered; other accounts are not affected. The share shrinks with the number of accounts that
hold something, so that the node as a whole is bounded as well."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from broker.subjects import PublishingConnection

ACCOUNT_BYTES: Final = 12 << 20
NODE_BYTES: Final = 96 << 20
LEAST_BYTES: Final = 2 << 20  # smallest share of an account, however many there are


@dataclass(slots=True, eq=False)
class AccountPublishes:
    """What the outboxes of one account hold."""

    node: HeldPublishes
    held: int = 0
    _paused: dict[PublishingConnection, None] = field(default_factory=dict)

    @property
    def share(self) -> int:
        node = self.node
        return max(
            LEAST_BYTES, min(node.account_bytes, node.node_bytes // max(node.accounts_holding, 1))
        )

    def changed(self, more: int) -> None:
        """An outbox holds `more` bytes more, or less (negative)."""
        held, self.held = self.held, self.held + more
        if not held or not self.held:
            self.node.accounts_holding += bool(self.held) - bool(held)
        if self._paused and self.held <= self.share // 2:
            paused, self._paused = self._paused, {}
            for publisher in paused:
                publisher.resume_reading()

    def wait(self, publisher: PublishingConnection) -> None:
        """Pause reading from the publisher if the account holds too much."""
        held = self.held
        if held > LEAST_BYTES and held > self.share and publisher not in self._paused:
            self._paused[publisher] = None
            publisher.pause_reading()


@dataclass(slots=True, eq=False)
class HeldPublishes:
    """One per node."""

    account_bytes: int = ACCOUNT_BYTES
    node_bytes: int = NODE_BYTES
    accounts_holding: int = 0
    _accounts: dict[str, AccountPublishes] = field(default_factory=dict)

    def of(self, account: str) -> AccountPublishes:
        found = self._accounts.get(account)
        if found is None:
            found = self._accounts[account] = AccountPublishes(self)
        return found
