"""What is told of a connection, and remembered after it has gone.

Owns: the record that /connz shows, with a bound on what it says of subscriptions.
May not touch: the connection's life.
Spec: core contract 7.2."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.server.client.connection import Connection

KEPT_MAX = 100  # subscriptions remembered of a closed connection


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


def record(connection: Connection, *, now: float, loop_now: float) -> ConnectionRecord:
    reason = connection.reason
    return ConnectionRecord(
        cid=connection.cid,
        kind=connection.entrance.kind,
        host=connection.host,
        port=connection.port,
        started=connection.started,
        last_activity=now - (loop_now - connection.last_data),
        stopped=None if reason is None else time.time(),
        reason="" if reason is None else reason.value,
        rtt_s=connection.live.rtt_s,
        pending_bytes=connection.pending_bytes,
        in_msgs=connection.in_msgs,
        out_msgs=connection.out_msgs,
        in_bytes=connection.in_bytes,
        out_bytes=connection.out_bytes,
        stalls=connection.stalls,
        name=connection.connect.name,
        lang=connection.connect.lang,
        version=connection.connect.version,
        user=connection.identity.user,
        account=connection.account.name,
        tls=connection.tls_description(),
        subscription_count=len(connection.subs),
        subscriptions=() if reason is None else subscriptions_of(connection, KEPT_MAX),
    )


def subscriptions_of(connection: Connection, limit: int) -> tuple[SubscriptionRecord, ...]:
    return tuple(
        SubscriptionRecord(
            subject=sub.subject.decode(errors="replace"),
            queue=sub.queue.decode(errors="replace"),
            sid=sub.sid.decode(errors="replace"),
            msgs=sub.delivered,
            max_msgs=sub.max_msgs,
            cid=connection.cid,
        )
        for sub in islice(connection.subs.values(), limit)
    )
