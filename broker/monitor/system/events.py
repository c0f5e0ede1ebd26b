"""What happens on this server, told in the system account to whoever listens.

Owns: the events of clients and of the server itself, and the timer of the regular numbers.
May not touch: connections beyond taking a record.
An event nobody listens to costs one cached lookup; nothing is built for it, and nothing is done
per message.
Spec: core contract 9.4."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.accounts import GLOBAL_ACCOUNT
from broker.monitor.system.account_requests import connections_event
from broker.monitor.system.server_summary import event
from broker.monitor.system.statsz import statsz
from broker.server.client.close_reason import Reason
from broker.server.process.times import timestamp
from broker.server.services import Document

if TYPE_CHECKING:
    from broker.accounts import Account
    from broker.monitor.documents.documents import Documents
    from broker.monitor.system.responder import Responder
    from broker.server.client.connection import Connection
    from broker.server.client.connection_record import ConnectionRecord

STATSZ_EVERY_S = 10.0


class Events:
    """Told by the server what happens; tells it on. Silent before `start` and after `stop`."""

    def __init__(self, desk: Responder, documents: Documents) -> None:
        self._desk = desk
        self._server = desk.server
        self._documents = documents
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(STATSZ_EVERY_S, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self.start()
        self._tell(f"$SYS.SERVER.{self._server.id}.STATSZ", self._numbers)

    def _numbers(self) -> Document:
        numbers = statsz(self._server, cpu=self._documents.cpu.percent())
        return {"server": self._server.about.stamp(), "statsz": numbers}

    # -- the server -----------------------------------------------------------------------------

    def lame_duck(self) -> None:
        self._tell(f"$SYS.SERVER.{self._server.id}.LAMEDUCK", self._server.about.stamp)

    def shutdown(self) -> None:
        self._tell(f"$SYS.SERVER.{self._server.id}.SHUTDOWN", self._server.about.stamp)

    # -- clients --------------------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        account = connection.account
        if account.name == GLOBAL_ACCOUNT:
            return
        self._count(account)
        self._tell(
            f"$SYS.ACCOUNT.{account.name}.CONNECT",
            lambda: {
                **self._event("client_connect"),
                "client": client(connection.record(), user=connection.identity.user),
            },
        )

    def gone(self, connection: Connection, last: ConnectionRecord) -> None:
        """`last` is what is remembered of it."""
        user = last.user or connection.connect.user
        if connection.reason is Reason.AUTHENTICATION_VIOLATION:
            subject = f"$SYS.SERVER.{self._server.id}.CLIENT.AUTH.ERR"
            self._tell(subject, lambda: self._disconnect(last, user))
        if connection.admitted and last.account != GLOBAL_ACCOUNT:
            self._count(connection.account)
            subject = f"$SYS.ACCOUNT.{last.account}.DISCONNECT"
            self._tell(subject, lambda: self._disconnect(last, user))

    def _disconnect(self, last: ConnectionRecord, user: str) -> Document:
        """Sent and received as the client sees it."""
        return {
            **self._event("client_disconnect"),
            "client": client(last, user=user),
            "sent": {"msgs": last.in_msgs, "bytes": last.in_bytes},
            "received": {"msgs": last.out_msgs, "bytes": last.out_bytes},
            "reason": last.reason,
        }

    def _count(self, account: Account) -> None:
        name = account.name
        for subject in (f"$SYS.ACCOUNT.{name}.SERVER.CONNS", f"$SYS.SERVER.ACCOUNT.{name}.CONNS"):
            self._tell(subject, lambda: connections_event(self._server, account))

    def _event(self, kind: str) -> Document:
        return event(self._server, kind)

    def _tell(self, subject: str, make: Callable[[], Document]) -> None:
        to = subject.encode()
        if self._server.router.has_interest(self._desk.system_account, to):
            self._desk.send(to, make())


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
        "kind": "Client",
        "client_type": found.kind,
    }
    if found.stopped is not None:
        document |= {"rtt": round(found.rtt_s * 1e9), "stop": timestamp(found.stopped)}
    return {name: value for name, value in document.items() if value != ""}
