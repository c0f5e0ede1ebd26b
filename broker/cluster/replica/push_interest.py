"""Interest in the deliver subjects of push consumers.

Owns: which leaderships on this node are notified when subscriptions to a deliver subject change,
and the rule which subscriptions count.
May not touch: subscriptions (broker.subjects), interest of other nodes (peers/interest.py).
Spec: NATS JetStream consumers, deliver_subject and deliver_group (push_bound). A subscription of
another account counts if that account imports the deliver subject as a stream."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

from broker.accounts import Account
from broker.config.check_accounts import import_mapping
from broker.config.options import AccountOptions
from broker.server.routing.imports import CROSSINGS_MAX, StreamImport
from broker.subjects.mapping import BadMapping, Mapping


class InterestWatcher(Protocol):
    def interest_changed(self, subject: bytes) -> None: ...


class PeerInterest(Protocol):
    def exact_at_peer(self, account: Account, subject: bytes, *, queue: bytes = b"") -> bool: ...


@dataclass(slots=True)
class PushInterest:
    """One per node."""

    peers: PeerInterest
    # Importing account -> exporters, with the mapping from local subjects to theirs.
    exporters: dict[str, list[tuple[str, Mapping]]] = field(default_factory=dict)
    _watchers: dict[tuple[str, bytes], dict[InterestWatcher, None]] = field(default_factory=dict)

    def watch(self, account: str, subject: bytes, watcher: InterestWatcher) -> None:
        self._watchers.setdefault((account, subject), {})[watcher] = None

    def unwatch(self, account: str, subject: bytes, watcher: InterestWatcher) -> None:
        watchers = self._watchers.get((account, subject))
        if watchers is not None:
            watchers.pop(watcher, None)
            if not watchers:
                del self._watchers[account, subject]

    def changed(self, account: str, subject: bytes, crossings: int = 0) -> None:
        for watcher in list(self._watchers.get((account, subject), ())):
            watcher.interest_changed(subject)
        if crossings < CROSSINGS_MAX:
            for exporter, mapping in self.exporters.get(account, ()):
                exported = mapping(subject)
                if exported is not None:
                    self.changed(exporter, exported, crossings + 1)

    def is_bound(self, account: Account, subject: bytes, group: bytes, crossings: int = 0) -> bool:
        """Only subscriptions to exactly this subject, and in exactly this queue group, count."""
        if self.peers.exact_at_peer(account, subject, queue=group):
            return True
        match = account.subs.match(subject)
        if group:
            members = (sub for pool in match.queues for sub in pool)
            return any(sub.queue == group and sub.subject == subject for sub in members)
        for sub in match.plain:
            sink = sub.sink
            if isinstance(sink, StreamImport):
                local = sink.mapped(subject)
                heard = local is not None and crossings < CROSSINGS_MAX
                if heard and self.is_bound(sink.target, local or b"", b"", crossings + 1):
                    return True
            elif sub.subject == subject:
                return True
        return False


def exporters(accounts: Iterable[AccountOptions]) -> dict[str, list[tuple[str, Mapping]]]:
    """For PushInterest. An import whose mapping cannot be reversed is left out: consumers with
    subscribers behind such an import notice them at the next periodic check."""
    found: dict[str, list[tuple[str, Mapping]]] = {}
    for options in accounts:
        for rule in options.imports:
            if rule.service:
                continue
            with suppress(BadMapping):
                reverse = import_mapping(replace(rule, service=True))
                found.setdefault(options.name, []).append((rule.account, reverse))
    return found
