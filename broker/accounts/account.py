"""An account: an isolated subject space with its subscriptions and connections.

Owns: the subscription tree of one account and the set of its connections.
May not touch: sockets, routing decisions, other accounts.
Spec: NATS accounts; messages never cross accounts without an export and an import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from broker.accounts.mappings import AccountMappings
from broker.accounts.unsent_bytes import UnsentBytes
from broker.config.options import GLOBAL_ACCOUNT, SYSTEM_ACCOUNT, AccountOptions
from broker.subjects import SubjectTree

__all__ = ["GLOBAL_ACCOUNT", "SYSTEM_ACCOUNT", "Account"]


class AccountConnection(Protocol):
    """A connection, as its account sees it."""

    cid: int
    in_msgs: int
    in_bytes: int
    out_msgs: int
    out_bytes: int


@dataclass(slots=True)
class Traffic:
    """Messages and bytes, in and out."""

    in_msgs: int = 0
    in_bytes: int = 0
    out_msgs: int = 0
    out_bytes: int = 0

    def add(self, other: Traffic | AccountConnection) -> None:
        self.in_msgs += other.in_msgs
        self.in_bytes += other.in_bytes
        self.out_msgs += other.out_msgs
        self.out_bytes += other.out_bytes


class Account:
    """One tenant. Its tree holds the subscriptions of clients, peers, streams and services."""

    __slots__ = ("connections", "mappings", "name", "options", "past", "subs", "unsent")

    def __init__(
        self, name: str, options: AccountOptions | None = None, *, cluster: str = ""
    ) -> None:
        self.name = name
        self.reconfigure(options, cluster=cluster)
        self.subs = SubjectTree()
        self.connections: dict[int, AccountConnection] = {}
        self.past = Traffic()  # traffic of closed connections
        self.unsent = UnsentBytes()

    def reconfigure(self, options: AccountOptions | None, *, cluster: str) -> None:
        """`cluster`: the name of ours, which some subject mappings depend on."""
        self.options = options or AccountOptions(self.name)
        rules = self.options.mappings
        self.mappings = AccountMappings(rules, cluster) if rules else None

    @property
    def label(self) -> str:
        """What people call it."""
        return self.options.label or self.name

    def traffic(self) -> Traffic:
        """The traffic of all connections, open and closed."""
        total = Traffic()
        total.add(self.past)
        for connection in self.connections.values():
            total.add(connection)
        return total

    def __repr__(self) -> str:
        return f"Account({self.name!r}, {len(self.subs)} subscriptions)"
