"""Backpressure per account: how many bytes of unanswered publishes it may have on this node.

Owns: the bytes that the outboxes of each account hold, and the publishers paused because of them.
May not touch: the outboxes; each reports changes of what it holds.
An outbox bounds itself (outbox_core.py), but an account may have a thousand streams. Once an
account exceeds its share of the node, reading from its publishers is paused until half of the share
is answered; other accounts are not affected. The share shrinks with the number of accounts that
hold something, so that the node as a whole is bounded as well.
What an account holds is also what a publish of another account waits for, since all streams share
one log and one disk: while others publish, an account has a third of what it has alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from broker.accounts.paused_publishers import PausedPublishers
from broker.subjects import PublishingConnection

ACCOUNT_BYTES: Final = 12 << 20
SHARED_BYTES: Final = 4 << 20  # while another account has published
RECENTLY_S: Final = 1.0
NODE_BYTES: Final = 96 << 20
LEAST_BYTES: Final = 2 << 20  # smallest share of an account, however many there are


@dataclass(slots=True, eq=False)
class AccountPublishes:
    """What the outboxes of one account hold."""

    node: HeldPublishes
    held: int = 0
    _paused: PausedPublishers = field(init=False)

    def __post_init__(self) -> None:
        self._paused = PausedPublishers(lambda: self.held <= self.share // 2)

    @property
    def share(self) -> int:
        node = self.node
        most = node.account_bytes if node.is_alone(self) else node.shared_bytes
        return max(LEAST_BYTES, min(most, node.node_bytes // max(node.accounts_holding, 1)))

    def changed(self, more: int) -> None:
        """An outbox holds `more` bytes more, or less (negative)."""
        held, self.held = self.held, self.held + more
        if not held or not self.held:
            self.node.holds(self, bool(self.held) - bool(held))
        if self._paused:
            self._paused.resume()

    def wait(self, publisher: PublishingConnection) -> None:
        """Pause reading from the publisher if the account holds too much."""
        held = self.held
        if held > LEAST_BYTES and held > self.share:
            self._paused.pause(publisher)


@dataclass(slots=True, eq=False)
class HeldPublishes:
    """One per node."""

    account_bytes: int = ACCOUNT_BYTES
    shared_bytes: int = SHARED_BYTES
    node_bytes: int = NODE_BYTES
    accounts_holding: int = 0
    clock: Callable[[], float] = time.monotonic
    _latest: tuple[AccountPublishes | None, float] = (None, -RECENTLY_S)  # began or ceased to hold
    _before: tuple[AccountPublishes | None, float] = (None, -RECENTLY_S)  # another account
    _accounts: dict[str, AccountPublishes] = field(default_factory=dict)

    def of(self, account: str) -> AccountPublishes:
        found = self._accounts.get(account)
        if found is None:
            found = self._accounts[account] = AccountPublishes(self)
        return found

    def holds(self, account: AccountPublishes, change: int) -> None:
        """The account holds something from now on (1), or nothing (-1)."""
        self.accounts_holding += change
        if self._latest[0] is not account:
            self._before = self._latest
        self._latest = (account, self.clock())

    def is_alone(self, account: AccountPublishes) -> bool:
        """Whether no other account holds anything, or has done so recently."""
        if self.accounts_holding > bool(account.held):
            return False
        _, at = self._before if self._latest[0] is account else self._latest
        return self.clock() - at >= RECENTLY_S
