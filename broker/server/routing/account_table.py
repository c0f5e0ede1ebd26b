"""The accounts of one server.

Owns: which accounts exist; one is created when it is first named.
May not touch: what an account holds.
Spec: NATS accounts: subjects of different accounts are separate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from broker.accounts import Account
from broker.config.options import AccountOptions


class AccountTable(Mapping[str, Account]):
    """Read it like a dict; `open` also creates."""

    __slots__ = ("_accounts", "_cluster", "_configured", "_created")

    def __init__(self, configured: Sequence[AccountOptions], *, cluster: str = "") -> None:
        self._cluster = cluster
        self._configured = {one.name: one for one in configured}
        self._accounts: dict[str, Account] = {}
        self._created: list[Callable[[Account], None]] = []

    def __getitem__(self, name: str) -> Account:
        return self._accounts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._accounts)

    def __len__(self) -> int:
        return len(self._accounts)

    def open(self, name: str) -> Account:
        """The account of that name; a new one if there is none."""
        found = self._accounts.get(name)
        if found is None:
            found = self._accounts[name] = Account(
                name, self._configured.get(name), cluster=self._cluster
            )
            for callback in self._created:
                callback(found)
        return found

    def reconfigure(self, configured: Sequence[AccountOptions]) -> None:
        """Apply these options to the open accounts; one that is not listed has none from now on."""
        self._configured = {one.name: one for one in configured}
        for account in self._accounts.values():
            account.reconfigure(self._configured.get(account.name), cluster=self._cluster)
        for name in self._configured:
            self.open(name)

    def is_configured(self, name: str) -> bool:
        return name in self._configured

    def on_created(self, callback: Callable[[Account], None]) -> None:
        """Call `callback` for every existing account, and for every one created later."""
        self._created.append(callback)
        for account in list(self._accounts.values()):
            callback(account)
