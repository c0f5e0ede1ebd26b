"""/connz and /subsz: connections and subscriptions, sorted and paged.

Owns: the documents and the query rules.
May not touch: connections beyond taking a record of each.
Spec: core contract 7 and 7.2."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.http.render import BadQuery, boolean, integer, short_span, span, timestamp
from broker.server.record import ConnectionRecord, SubscriptionRecord, record
from broker.server.runtime import Document, Query
from broker.subjects import matches

if TYPE_CHECKING:
    from broker.server.server import Server

LIMIT = 1024

SORTS: dict[str, Callable[[ConnectionRecord], float | str]] = {
    "cid": lambda found: found.cid,
    "start": lambda found: found.started,
    "subs": lambda found: -len(found.subscriptions),
    "pending": lambda found: -found.pending_bytes,
    "msgs_to": lambda found: -found.out_msgs,
    "msgs_from": lambda found: -found.in_msgs,
    "bytes_to": lambda found: -found.out_bytes,
    "bytes_from": lambda found: -found.in_bytes,
    "last": lambda found: -found.last_activity,
    "idle": lambda found: found.last_activity,
    "uptime": lambda found: found.started,
    "stop": lambda found: -(found.stopped or 0.0),
    "reason": lambda found: found.reason,
    "rtt": lambda found: -found.rtt_s,
}


def connz(server: Server, query: Query) -> Document:
    """Raises BadQuery."""
    sort = query.get("sort") or "cid"
    if sort not in SORTS:
        raise BadQuery(f"invalid sorting option: {sort}")
    detail = query.get("subs", "")
    with_subs = detail == "detail" or boolean({"subs": detail}, "subs")
    offset, limit = integer(query, "offset", 0), integer(query, "limit", LIMIT) or LIMIT
    now = time.time()
    found = _selected(server, query, now)
    found.sort(key=SORTS[sort])
    page = found[offset : offset + limit]
    auth = boolean(query, "auth")
    return {
        "server_id": server.id,
        "now": timestamp(now),
        "num_connections": len(page),
        "total": len(found),
        "offset": offset,
        "limit": limit,
        "connections": [
            _connection(one, now, auth=auth, subs=detail if with_subs else "") for one in page
        ],
    }


def _selected(server: Server, query: Query, now: float) -> list[ConnectionRecord]:
    state = (query.get("state") or "open").lower()
    if state not in ("open", "closed", "any", "all"):
        raise BadQuery(f"Error decoding state for '{state}'")
    loop_now = asyncio.get_running_loop().time()
    found: list[ConnectionRecord] = []
    if state != "closed":
        found += [record(one, now=now, loop_now=loop_now) for one in server.connections.values()]
    if state != "open":
        found += server.history
    cid = integer(query, "cid", 0)
    if cid:
        found = [one for one in found if one.cid == cid]
    if query.get("user"):
        found = [one for one in found if one.user == query["user"]]
    if query.get("acc"):
        found = [one for one in found if one.account == query["acc"]]
    return found


def _connection(found: ConnectionRecord, now: float, *, auth: bool, subs: str) -> Document:
    end = now if found.stopped is None else found.stopped
    document: Document = {
        "cid": found.cid,
        "kind": "Client",
        "type": "nats",
        "ip": found.host,
        "port": found.port,
        "start": timestamp(found.started),
        "last_activity": timestamp(found.last_activity),
        "rtt": short_span(found.rtt_s),
        "uptime": span(end - found.started),
        "idle": span(end - found.last_activity),
        "pending_bytes": found.pending_bytes,
        "in_msgs": found.in_msgs,
        "out_msgs": found.out_msgs,
        "in_bytes": found.in_bytes,
        "out_bytes": found.out_bytes,
        "stalls": found.stalls,
        "subscriptions": len(found.subscriptions),
    }
    if found.stopped is not None:
        document["stop"] = timestamp(found.stopped)
        document["reason"] = found.reason
    for name in ("name", "lang", "version"):
        if value := getattr(found, name):
            document[name] = value
    if found.tls is not None:
        document["tls_version"], document["tls_cipher_suite"] = found.tls
    if auth:
        document["authorized_user"] = found.user
        document["account"] = found.account
    if subs == "detail":
        document["subscriptions_list_detail"] = [subscription(one) for one in found.subscriptions]
    elif subs:
        document["subscriptions_list"] = [one.subject for one in found.subscriptions]
    return document


def subscription(found: SubscriptionRecord) -> Document:
    document: Document = {"subject": found.subject}
    if found.queue:
        document["qgroup"] = found.queue
    document |= {"sid": found.sid, "msgs": found.msgs, "cid": found.cid}
    if found.max_msgs:
        document["max"] = found.max_msgs
    return document


def subsz(server: Server, query: Query) -> Document:
    """Raises BadQuery."""
    offset, limit = integer(query, "offset", 0), integer(query, "limit", LIMIT) or LIMIT
    accounts = [
        account
        for account in server.accounts.values()
        if query.get("acc") in (None, "", account.name)
    ]
    totals = [account.subs.statistics for account in accounts]
    looked_up = sum(one.matches for one in totals)
    document: Document = {
        "server_id": server.id,
        "now": timestamp(time.time()),
        "num_subscriptions": sum(len(account.subs) for account in accounts),
        "num_cache": sum(account.subs.cache_size for account in accounts),
        "num_inserts": sum(one.inserts for one in totals),
        "num_removes": sum(one.removes for one in totals),
        "num_matches": looked_up,
        "cache_hit_rate": sum(one.cache_hits for one in totals) / looked_up if looked_up else 0,
        "max_fanout": 0,
        "avg_fanout": 0,
    }
    if boolean(query, "subs") or query.get("test"):
        test = query.get("test", "").encode()
        listed: list[Document] = []
        for connection in server.connections.values():
            if query.get("acc") not in (None, "", connection.account.name):
                continue
            for sub in connection.subs.values():
                if test and not matches(test, sub.subject):
                    continue
                entry = {
                    "account": connection.account.name,
                    "subject": sub.subject.decode(errors="replace"),
                    "sid": sub.sid.decode(errors="replace"),
                    "msgs": sub.delivered,
                    "cid": connection.cid,
                }
                if sub.queue:
                    entry["qgroup"] = sub.queue.decode(errors="replace")
                listed.append(entry)
        page = listed[offset : offset + limit]
        document |= {
            "total": len(listed),
            "offset": offset,
            "limit": limit,
            "subscriptions_list": page,
        }
    return document
