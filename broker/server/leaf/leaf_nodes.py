"""The table of leaf node connections of this server.

Owns: which connections are open and admitted, which of them are notified of an account's
subscriptions, and the loop subject of each account.
May not touch: sockets; a connection ends itself and is then removed here.
Spec: nats-server, /leafz; a server that connects again replaces its older connection."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import Protocol

from broker.accounts import Account
from broker.server.client.close_reason import Reason
from broker.server.leaf.leaf_connection import LeafConnection
from broker.server.leaf.leaf_rules import LOOP_PREFIX
from broker.server.process.log import logger
from broker.subjects import SinkKind, Subscription

DUPLICATE = "Duplicate Remote LeafNode Connection"


class LeafObserver(Protocol):
    """Notified when a connection, accepted or dialed, is admitted or ends."""

    def leaf_connected(self, connection: LeafConnection) -> None: ...

    def leaf_disconnected(self, connection: LeafConnection) -> None: ...


class LeafNodes:
    """One per server."""

    def __init__(self, draw: Callable[[int], str] = secrets.token_hex) -> None:
        self._draw = draw
        self._accounts: dict[str, dict[LeafConnection, None]] = {}
        self._loops: dict[str, bytes] = {}
        self.observers: list[LeafObserver] = []
        self.in_msgs = self.in_bytes = self.out_msgs = self.out_bytes = 0  # of closed connections

    def __len__(self) -> int:
        return sum(map(len, self._accounts.values()))

    def count(self, account: str) -> int:
        return len(self._accounts.get(account, ()))

    def connections(self) -> list[LeafConnection]:
        return [one for found in self._accounts.values() for one in found]

    def loop_subject(self, account: str) -> bytes:
        found = self._loops.get(account)
        if found is None:
            found = self._loops[account] = LOOP_PREFIX + self._draw(11).encode()
        return found

    def add(self, connection: LeafConnection) -> None:
        sink = connection.sink
        assert sink is not None, "admitted before"
        self._replace(connection)
        account = sink.account
        if account.name not in self._accounts:
            self._accounts[account.name] = {}
            account.subs.watcher = partial(self._changed, account)
        self._accounts[account.name][connection] = None
        for observer in self.observers:
            observer.leaf_connected(connection)

    def _replace(self, new: LeafConnection) -> None:
        """Close an older connection of the same server: it may reconnect before we notice that the
        old connection is dead."""
        sink = new.sink
        if sink is None or sink.kind is not SinkKind.LEAF or not new.remote_name:
            return
        for old in list(self._accounts.get(sink.account.name, ())):
            same = old.sink is not None and old.sink.kind is SinkKind.LEAF
            if same and _origin(old) == _origin(new) and new.remote_account:
                logger.warning("%s - Replacing connection from same server", new.label)
                old.fail(DUPLICATE, Reason.DUPLICATE_LEAF)

    def remove(self, connection: LeafConnection) -> None:
        sink = connection.sink
        if sink is None:
            return
        found = self._accounts.get(sink.account.name)
        if found is None or found.pop(connection, connection) is connection:
            return
        self.in_msgs += sink.in_msgs
        self.in_bytes += sink.in_bytes
        self.out_msgs += sink.out_msgs
        self.out_bytes += sink.out_bytes
        if not found:
            del self._accounts[sink.account.name]
            sink.account.subs.watcher = None
        for observer in self.observers:
            observer.leaf_disconnected(connection)

    def _changed(self, account: Account, sub: Subscription, members: int) -> None:
        for connection in self._accounts.get(account.name, ()):
            connection.interest_changed(sub, members)

    def update_info(self) -> None:
        """Send INFO again: its content has changed."""
        for connection in self.connections():
            connection.update_info()

    def close_all(self, reason: Reason) -> None:
        for connection in self.connections():
            connection.close(reason)


def _origin(connection: LeafConnection) -> tuple[str, str, str]:
    sink = connection.sink
    cluster = "" if sink is None else sink.cluster
    return connection.remote_name, cluster, connection.remote_account
