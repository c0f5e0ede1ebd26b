"""Interest in the deliver subjects of push consumers.

Owns: which leaderships on this node are notified when subscriptions to a deliver subject change,
and the rule which subscriptions count.
May not touch: subscriptions (broker.subjects), interest of other nodes (peers/interest.py).
Spec: NATS JetStream consumers, deliver_subject and deliver_group (push_bound)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from broker.accounts import Account


class InterestWatcher(Protocol):
    def interest_changed(self, subject: bytes) -> None: ...


class PeerInterest(Protocol):
    def exact_at_peer(self, account: Account, subject: bytes, *, queue: bytes = b"") -> bool: ...


@dataclass(slots=True)
class PushInterest:
    """One per node."""

    peers: PeerInterest
    _watchers: dict[tuple[str, bytes], dict[InterestWatcher, None]] = field(default_factory=dict)

    def watch(self, account: str, subject: bytes, watcher: InterestWatcher) -> None:
        self._watchers.setdefault((account, subject), {})[watcher] = None

    def unwatch(self, account: str, subject: bytes, watcher: InterestWatcher) -> None:
        watchers = self._watchers.get((account, subject))
        if watchers is not None:
            watchers.pop(watcher, None)
            if not watchers:
                del self._watchers[account, subject]

    def changed(self, account: str, subject: bytes) -> None:
        for watcher in list(self._watchers.get((account, subject), ())):
            watcher.interest_changed(subject)

    def is_bound(self, account: Account, subject: bytes, group: bytes) -> bool:
        """Only subscriptions to exactly this subject, and in exactly this queue group, count."""
        if self.peers.exact_at_peer(account, subject, queue=group):
            return True
        match = account.subs.match(subject)
        if not group:
            return any(sub.subject == subject for sub in match.plain)
        return any(
            sub.queue == group and sub.subject == subject for pool in match.queues for sub in pool
        )
