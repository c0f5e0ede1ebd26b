"""Events of this server, published in the system account.

Owns: the events of clients and of the server itself, and the timer of the regular STATSZ.
May not touch: connections, beyond taking a record.
An event without subscribers costs one cached lookup: it is not built, and nothing is done per
message.
Spec: NATS system account, $SYS.SERVER and $SYS.ACCOUNT events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from broker.accounts import GLOBAL_ACCOUNT, Account
from broker.accounts.identity import Identity
from broker.monitor.documents.documents import Documents
from broker.monitor.system.account_requests import connections_event
from broker.monitor.system.responder import Responder
from broker.monitor.system.statsz import statsz
from broker.server.client.close_reason import Reason
from broker.server.client.connections import ConnectionRecord, OpenConnection, record
from broker.server.leaf.leaf_connection import LeafConnection
from broker.server.process.times import timestamp
from broker.server.services import Document
from broker.subjects import SinkKind, Steps

STATSZ_EVERY_S = 10.0


class Events:
    """An observer of the connections. Silent before `start` and after `stop`."""

    def __init__(self, responder: Responder, documents: Documents) -> None:
        self._responder = responder
        self._observed = responder.observed
        self._documents = documents
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._observed.server.clients.callout.on_refusal = self.refused
        self._tick_later()

    def _tick_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(STATSZ_EVERY_S, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self._tick_later()
        to = f"$SYS.SERVER.{self._observed.id}.STATSZ".encode()
        if self._observed.server.router.has_interest(self._observed.system_account, to):
            self._responder.tell(to, self._numbers())

    def _numbers(self) -> Steps[Document | None]:
        numbers = yield from statsz(self._observed, cpu=self._documents.cpu.percent())
        return {"server": self._observed.stamp(), "statsz": numbers}

    # -- the server -----------------------------------------------------------------------------

    def lame_duck(self) -> None:
        self._publish(f"$SYS.SERVER.{self._observed.id}.LAMEDUCK", self._observed.stamp)

    def shutdown(self) -> None:
        self._publish(f"$SYS.SERVER.{self._observed.id}.SHUTDOWN", self._observed.stamp)

    # -- clients --------------------------------------------------------------------------------

    def connected(self, connection: OpenConnection) -> None:
        account = connection.account
        if account.name == GLOBAL_ACCOUNT:
            return
        self._count(account)
        self._publish(
            f"$SYS.ACCOUNT.{account.name}.CONNECT",
            lambda: {
                **self._observed.event("client_connect"),
                "client": client(
                    record(connection, now=time.time()), user=connection.identity.user
                ),
            },
        )

    def disconnected(self, connection: OpenConnection, last: ConnectionRecord) -> None:
        """`last` is what the history keeps of it."""
        user = last.user or connection.connect.user
        if connection.reason is Reason.AUTHENTICATION_VIOLATION:
            subject = f"$SYS.SERVER.{self._observed.id}.CLIENT.AUTH.ERR"
            self._publish(subject, lambda: self._disconnect(last, user))
            if last.account == GLOBAL_ACCOUNT:  # who was never admitted is of no other
                subject = f"$SYS.ACCOUNT.{GLOBAL_ACCOUNT}.DISCONNECT"
                self._publish(subject, lambda: self._disconnect(last, user))
        if connection.admitted and last.account != GLOBAL_ACCOUNT:
            self._count(connection.account)
            subject = f"$SYS.ACCOUNT.{last.account}.DISCONNECT"
            self._publish(subject, lambda: self._disconnect(last, user))

    def refused(self, cid: int, account: Account, claimed: Identity | None, reason: str) -> None:
        """By an authorization service, in whose account this is told, too."""
        connection = self._observed.server.connections.get(cid)
        to = b"$SYS.ACCOUNT.CLIENT.AUTH.ERR"
        if connection is None or not self._observed.server.router.has_interest(account, to):
            return
        now = time.time()
        found = record(connection, now=now)
        last = replace(found, stopped=now, reason=reason, account=account.name)
        user = connection.connect.user
        if claimed is not None:
            user, name = claimed.user, claimed.account_name
            last = replace(last, issuer=claimed.issuer, account_label=name)
        self._responder.send(to, self._disconnect(last, user), account)

    # -- leaf nodes -----------------------------------------------------------------------------

    def leaf_connected(self, connection: LeafConnection) -> None:
        sink = connection.sink
        if sink is None or sink.kind is not SinkKind.LEAF or sink.account.name == GLOBAL_ACCOUNT:
            return  # a hub of ours is told of at its side
        self._count(sink.account)
        self._publish(
            f"$SYS.ACCOUNT.{sink.account.name}.CONNECT",
            lambda: {
                **self._observed.event("client_connect"),
                "client": leaf(connection, sink.account),
            },
        )

    def leaf_disconnected(self, connection: LeafConnection) -> None:
        sink = connection.sink
        if sink is None or sink.kind is not SinkKind.LEAF or sink.account.name == GLOBAL_ACCOUNT:
            return
        self._count(sink.account)
        reason = "" if connection.reason is None else connection.reason.value
        self._publish(
            f"$SYS.ACCOUNT.{sink.account.name}.DISCONNECT",
            lambda: {
                **self._observed.event("client_disconnect"),
                "client": leaf(connection, sink.account, stopped=time.time()),
                "sent": {"msgs": sink.in_msgs, "bytes": sink.in_bytes},
                "received": {"msgs": sink.out_msgs, "bytes": sink.out_bytes},
                "reason": reason,
            },
        )

    def _disconnect(self, last: ConnectionRecord, user: str) -> Document:
        """`sent` and `received` from the point of view of the client."""
        return {
            **self._observed.event("client_disconnect"),
            "client": client(last, user=user),
            "sent": {"msgs": last.in_msgs, "bytes": last.in_bytes},
            "received": {"msgs": last.out_msgs, "bytes": last.out_bytes},
            "reason": last.reason,
        }

    def _count(self, account: Account) -> None:
        name = account.name
        for subject in (f"$SYS.ACCOUNT.{name}.SERVER.CONNS", f"$SYS.SERVER.ACCOUNT.{name}.CONNS"):
            self._publish(subject, lambda: connections_event(self._observed, account))

    def _publish(self, subject: str, make: Callable[[], Document]) -> None:
        to = subject.encode()
        if self._observed.server.router.has_interest(self._observed.system_account, to):
            self._responder.send(to, make())


def client(found: ConnectionRecord, *, user: str) -> Document:
    document: Document = {
        "start": timestamp(found.started),
        "host": found.host,
        "id": found.cid,
        "acc": found.account,
        "user": user,
        "name": found.name,
        "lang": found.lang,
        "ver": found.version,
        "jwt": found.jwt,
        "issuer_key": found.issuer,
        "name_tag": found.account_label,
        "tags": list(found.tags) or "",
        "kind": "Client",
        "client_type": found.kind,
    }
    if found.stopped is not None:
        document |= {"rtt": round(found.rtt_s * 1e9), "stop": timestamp(found.stopped)}
    return {name: value for name, value in document.items() if value != ""}


def leaf(connection: LeafConnection, account: Account, *, stopped: float = 0) -> Document:
    document: Document = {
        "start": timestamp(connection.started),
        "host": connection.socket.host,
        "id": connection.cid,
        "acc": account.name,
        "user": connection.user,
        "name": connection.remote_name,
        "ver": connection.remote_version,
        "name_tag": account.label,
        "kind": "Leafnode",
    }
    if stopped:
        document |= {"rtt": round(connection.rtt_s * 1e9), "stop": timestamp(stopped)}
    return {name: value for name, value in document.items() if value != ""}
