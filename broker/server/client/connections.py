"""The table of client connections: open ones, the last closed ones, and their counters.

Owns: which connections are open, connection ids, the history that /connz shows, the totals, and
the observers of connects and disconnects.
May not touch: sockets; a connection ends itself and is then removed here.
Spec: NATS monitoring, /connz and /varz. Bound: `max_closed_clients` records, KEPT_MAX
subscriptions in each."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, ValuesView
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

from broker.accounts import Account
from broker.accounts.identity import Identity
from broker.config.options import Limits
from broker.server.client.client_sink import ClientSink
from broker.server.client.close_reason import Reason
from broker.server.client.connect_options import ConnectOptions
from broker.server.client.settings import ServerSettings
from broker.server.process.log import logger
from broker.subjects import Subscription

KEPT_MAX = 100  # subscriptions remembered of a closed connection


class OpenConnection(Protocol):
    """A connection, as the rest of the server, the monitor and the cluster see it."""

    @property
    def cid(self) -> int: ...
    @property
    def kind(self) -> str:
        """nats or websocket; `internal` for the server's own."""

    @property
    def internal(self) -> bool: ...
    @property
    def label(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def started(self) -> float:
        """Seconds since 1970."""

    @property
    def idle_s(self) -> float:
        """Since the last bytes came from the client."""

    @property
    def rtt_s(self) -> float: ...
    @property
    def reason(self) -> Reason | None:
        """Why it closed; None while it is open."""

    @property
    def closed(self) -> bool: ...
    @property
    def client(self) -> ClientSink: ...
    @property
    def account(self) -> Account: ...
    @property
    def identity(self) -> Identity: ...
    @property
    def connect(self) -> ConnectOptions: ...
    @property
    def subs(self) -> Mapping[bytes, Subscription]: ...
    @property
    def admitted(self) -> bool:
        """A CONNECT was accepted."""

    @property
    def pending_bytes(self) -> int: ...
    @property
    def stalls(self) -> int: ...
    def tls_description(self) -> tuple[str, str] | None: ...
    def greet(self) -> None: ...
    def queue(self, data: bytes | memoryview) -> None: ...
    def pause_reading(self) -> None: ...
    def send_info(self, *, ldm: bool = False) -> None:
        """INFO again, with what has changed."""

    def update_info(self, *, ldm: bool = False) -> None:
        """The same, for a client that understands more than one INFO."""

    def apply_limits(self, limits: Limits) -> None: ...
    def reauthenticate(self) -> None: ...
    def fail(self, text: str, reason: Reason) -> None: ...
    def leave(self, reason: Reason) -> None:
        """Close the sending side; what the client has sent is still read."""

    def close(self, reason: Reason) -> None: ...


class ConnectionObserver(Protocol):
    """Called when a client has been admitted, and when it has left."""

    def connected(self, connection: OpenConnection) -> None: ...

    def disconnected(self, connection: OpenConnection, last: ConnectionRecord) -> None:
        """`last` is what the history keeps of it."""


@dataclass(slots=True)
class Counters:
    """Counters of the whole server. `Connections.traffic` adds those of open connections."""

    total_connections: int = 0
    slow_consumers: int = 0
    stale_connections: int = 0
    stalls: int = 0
    auth_failures: int = 0
    in_msgs: int = 0
    in_bytes: int = 0
    out_msgs: int = 0
    out_bytes: int = 0

    def add(self, connection: OpenConnection) -> None:
        client = connection.client
        self.in_msgs += client.in_msgs
        self.in_bytes += client.in_bytes
        self.out_msgs += client.out_msgs
        self.out_bytes += client.out_bytes
        self.stalls += connection.stalls


class Connections(Mapping[int, OpenConnection]):
    """The open client connections, by id. The server's own connections are in `internal`."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._open: dict[int, OpenConnection] = {}
        # Neither counted, listed nor limited. A dict keeps their order.
        self.internal: dict[OpenConnection, None] = {}
        self.history: deque[ConnectionRecord] = deque(
            maxlen=settings.options.limits.max_closed_clients
        )
        self.counters = Counters()
        self.observers: list[ConnectionObserver] = []
        self._last_cid = 0

    def __getitem__(self, cid: int) -> OpenConnection:
        return self._open[cid]

    def __iter__(self) -> Iterator[int]:
        return iter(self._open)

    def __len__(self) -> int:
        return len(self._open)

    def values(self) -> ValuesView[OpenConnection]:
        return self._open.values()  # without the lookup per item of the base class

    def next_cid(self) -> int:
        self._last_cid += 1
        return self._last_cid

    def add(self, connection: OpenConnection) -> None:
        """A socket was accepted: greet it, or refuse it when the server is full."""
        if connection.internal:
            self.internal[connection] = None
            connection.greet()
            return
        limit = self._settings.options.limits.max_connections
        full = limit < 0 or 0 < limit <= len(self._open)
        self._open[connection.cid] = connection
        self.counters.total_connections += 1
        connection.greet()
        if full:
            logger.error("%s - maximum connections exceeded", connection.label)
            connection.fail("maximum connections exceeded", Reason.MAX_CONNECTIONS)

    def admitted(self, connection: OpenConnection) -> None:
        """Its first CONNECT was accepted."""
        for observer in self.observers:
            observer.connected(connection)

    def remove(self, connection: OpenConnection) -> None:
        """The connection has ended: add its traffic to the totals and keep a record of it."""
        if connection.internal:
            self.internal.pop(connection, None)
            return
        if self._open.pop(connection.cid, None) is None:
            return
        if connection.account.connections.pop(connection.cid, None) is not None:
            connection.account.past.add(connection.client)
        self.counters.add(connection)
        last = record(connection, now=time.time())
        self.history.append(last)
        for observer in self.observers:
            observer.disconnected(connection, last)

    def traffic(self) -> Counters:
        """The counters of the whole server at this moment, open connections included."""
        total = replace(self.counters)
        for connection in self._open.values():
            total.add(connection)
        return total

    def leave_all(self, reason: Reason) -> None:
        for connection in list(self._open.values()):
            connection.leave(reason)

    def close_all(self, reason: Reason) -> None:
        for connection in [*self._open.values(), *self.internal]:
            connection.close(reason)


@dataclass(frozen=True, slots=True)
class ConnectionRecord:
    """Numbers and names of one connection at one moment."""

    cid: int
    kind: str  # nats or websocket
    host: str
    port: int
    started: float
    last_activity: float
    stopped: float | None
    reason: str
    rtt_s: float
    pending_bytes: int
    in_msgs: int
    out_msgs: int
    in_bytes: int
    out_bytes: int
    stalls: int
    name: str
    lang: str
    version: str
    user: str
    account: str
    account_label: str
    jwt: str  # "" where it could be used to log in: a bearer token, or a client that was refused
    issuer: str  # who signed the JWT
    tags: tuple[str, ...]
    tls: tuple[str, str] | None
    subscription_count: int
    subscriptions: tuple[SubscriptionRecord, ...]  # of a closed one, the first KEPT_MAX


@dataclass(frozen=True, slots=True)
class SubscriptionRecord:
    subject: str
    queue: str
    sid: str
    msgs: int
    max_msgs: int
    cid: int


def record(connection: OpenConnection, *, now: float) -> ConnectionRecord:
    reason = connection.reason
    client, identity = connection.client, connection.identity
    return ConnectionRecord(
        cid=connection.cid,
        kind=connection.kind,
        host=connection.host,
        port=connection.port,
        started=connection.started,
        last_activity=now - connection.idle_s,
        stopped=None if reason is None else now,
        reason="" if reason is None else reason.value,
        rtt_s=connection.rtt_s,
        pending_bytes=connection.pending_bytes,
        in_msgs=client.in_msgs,
        out_msgs=client.out_msgs,
        in_bytes=client.in_bytes,
        out_bytes=client.out_bytes,
        stalls=connection.stalls,
        name=connection.connect.name,
        lang=connection.connect.lang,
        version=connection.connect.version,
        user=identity.user,
        account=connection.account.name,
        account_label=connection.account.label,
        jwt=connection.connect.jwt if identity.issuer and not identity.bearer else "",
        issuer=identity.issuer,
        tags=identity.tags,
        tls=connection.tls_description(),
        subscription_count=len(connection.subs),
        subscriptions=() if reason is None else subscriptions_of(connection, KEPT_MAX),
    )


def subscriptions_of(connection: OpenConnection, limit: int) -> tuple[SubscriptionRecord, ...]:
    return tuple(
        subscription_record(sub, connection.cid) for sub in islice(connection.subs.values(), limit)
    )


def subscription_record(sub: Subscription, cid: int) -> SubscriptionRecord:
    return SubscriptionRecord(
        subject=sub.subject.decode(errors="replace"),
        queue=sub.queue.decode(errors="replace"),
        sid=sub.sid.decode(errors="replace"),
        msgs=sub.delivered,
        max_msgs=sub.max_msgs,
        cid=cid,
    )
