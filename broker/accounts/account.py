"""An account: the name space that subscriptions and connections live in.

Owns: the subject table of one tenant and the set of its connections.
May not touch: sockets, routing decisions, other accounts.
Spec: core contract 3.4; the same subject in two accounts never meets."""

from __future__ import annotations

from typing import Protocol

from broker.config.options import GLOBAL_ACCOUNT, SYSTEM_ACCOUNT, AccountOptions
from broker.subjects import SubjectTree

__all__ = ["GLOBAL_ACCOUNT", "SYSTEM_ACCOUNT", "Account"]


class Member(Protocol):
    """A connection, as its account knows it."""

    cid: int


class Account:
    """One tenant. Its tree holds clients, peers, streams and services alike."""

    __slots__ = ("connections", "name", "options", "subs")

    def __init__(self, name: str, options: AccountOptions | None = None) -> None:
        self.name = name
        self.options = options or AccountOptions(name)
        self.subs = SubjectTree()
        self.connections: dict[int, Member] = {}

    def __repr__(self) -> str:
        return f"Account({self.name!r}, {len(self.subs)} subscriptions)"
