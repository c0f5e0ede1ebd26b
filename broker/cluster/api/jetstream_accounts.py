"""Which service answers the JetStream API in each account of this node.

Owns: the subscriptions of those services; a reload of the configuration changes them.
May not touch: requests, streams.
Spec: nats-server: an account has JetStream if its configuration says so; the others get 10039, the
system account its own requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from broker.accounts import Account
from broker.subjects import Subscription


class JetStreamService(Protocol):
    def subscriptions(self, account: Account) -> list[Subscription]:
        """The subscriptions by which the service serves the account."""


@dataclass(slots=True)
class JetStreamAccounts:
    """One per node."""

    account: Callable[[str], Account]
    with_jetstream: tuple[JetStreamService, ...]
    without: JetStreamService
    system: JetStreamService
    system_account: str
    _enabled: frozenset[str] = frozenset()
    _served: list[tuple[Account, Subscription]] = field(default_factory=list)

    def has_jetstream(self, account: str) -> bool:
        return account in self._enabled

    def serve(self, accounts: Iterable[str], enabled: Iterable[str]) -> None:
        """Serve exactly these accounts; `enabled` are those with JetStream."""
        self._enabled = frozenset(enabled)
        for account, sub in self._served:
            account.subs.remove(sub)
        self._served.clear()
        for name in {*accounts, self.system_account}:
            account = self.account(name)
            for service in self._services(name):
                for sub in service.subscriptions(account):
                    account.subs.insert(sub)
                    self._served.append((account, sub))

    def _services(self, name: str) -> tuple[JetStreamService, ...]:
        if name in self._enabled:
            return self.with_jetstream
        return (self.system,) if name == self.system_account else (self.without,)
