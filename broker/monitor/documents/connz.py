"""/connz and /subsz: connections and subscriptions, sorted and paged.

Owns: the documents and the query rules. A document is one page, and wherever the sort order allows
it, its cost is that of the page. Counts are exact; lists are cut at the bounds below. A document is
made in steps: connections may come and go between two of them.
May not touch: connections, beyond taking a record of each.
Spec: NATS monitoring, /connz and /subsz."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import islice

from broker.monitor.documents.accountz import sublist
from broker.monitor.documents.query import BadQuery, boolean, integer
from broker.monitor.observed import Observed
from broker.server.client.connections import (
    ConnectionRecord,
    OpenConnection,
    SubscriptionRecord,
    record,
    subscription_record,
)
from broker.server.process.times import short_span, span, timestamp
from broker.server.services import Document, Query
from broker.subjects import STEP_ITEMS, Steps, Subscription, collides, matches

LIMIT = 1024
LIMIT_MAX = 4096  # connections or subscriptions on one page, whatever `limit` says
LISTED_MAX = 16_384  # subscriptions listed on one page of connections
TESTED_MAX = 200_000  # subscriptions compared with a test subject
CONNECTIONS_PER_STEP = 8

SORTS: dict[str, Callable[[ConnectionRecord], float | str]] = {
    "cid": lambda found: found.cid,
    "start": lambda found: found.started,
    "subs": lambda found: -found.subscription_count,
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


def connz(observed: Observed, query: Query) -> Steps[Document]:
    """Raises BadQuery."""
    sort = query.get("sort") or "cid"
    if sort not in SORTS:
        raise BadQuery(f"invalid sorting option: {sort}")
    if sort == "stop" and (query.get("state") or "open").lower() == "open":
        raise BadQuery("sort by stop only valid on closed connections")
    detail = query.get("subs", "")
    with_subs = detail == "detail" or boolean({"subs": detail}, "subs")
    offset, limit = _page(query)
    auth = boolean(query, "auth")
    now = time.time()
    selected = _selected(observed, query, now, in_order=sort == "cid", page=(offset, limit))
    found, total = yield from selected
    if total is None:
        total = len(found)
        found.sort(key=SORTS[sort])
        found = found[offset : offset + limit]
    listed = _Listed(observed, LISTED_MAX)
    shown = []
    for position, one in enumerate(found):
        document = _connection(one, now, auth=auth)
        if with_subs:
            document |= yield from listed.subscriptions(one, detail=detail == "detail")
        shown.append(document)
        if position % CONNECTIONS_PER_STEP == 0:
            yield
    return {
        "server_id": observed.id,
        "now": timestamp(now),
        "num_connections": len(found),
        "total": total,
        "offset": offset,
        "limit": limit,
        "connections": shown,
    }


def _page(query: Query) -> tuple[int, int]:
    offset, limit = integer(query, "offset", 0), integer(query, "limit", LIMIT)
    return max(0, offset), min(limit, LIMIT_MAX) if limit > 0 else LIMIT


class _Listed:
    """The subscriptions of a page, up to a bound for all of its connections together."""

    __slots__ = ("_left", "_observed")

    def __init__(self, observed: Observed, limit: int) -> None:
        self._observed = observed
        self._left = limit

    def subscriptions(self, found: ConnectionRecord, *, detail: bool) -> Steps[Document]:
        connection = self._observed.server.connections.get(found.cid)
        subs = list(found.subscriptions[: self._left])
        if connection is not None:
            subs = []
            for position, sub in enumerate(list(islice(connection.subs.values(), self._left))):
                subs.append(subscription_record(sub, found.cid))
                if position % STEP_ITEMS == STEP_ITEMS - 1:
                    yield
        self._left -= len(subs)
        if not detail:
            return {"subscriptions_list": [one.subject for one in subs]}
        shown = []
        for position, one in enumerate(subs):
            shown.append(subscription(one))
            if position % STEP_ITEMS == STEP_ITEMS - 1:
                yield
        return {"subscriptions_list_detail": shown}


def _selected(
    observed: Observed, query: Query, now: float, *, in_order: bool, page: tuple[int, int]
) -> Steps[tuple[list[ConnectionRecord], int | None]]:
    """The records asked for; with a total, the page is already cut."""
    state = (query.get("state") or "open").lower()
    if state not in ("open", "closed", "any", "all"):
        raise BadQuery(f"Error decoding state for '{state}'")
    cid = integer(query, "cid", 0)
    connections = observed.server.connections
    pattern = query.get("filter_subject", "").encode()
    filtered = cid or pattern or query.get("user") or query.get("acc")
    if state == "open" and in_order and not filtered:  # the table is in this order
        shown = list(islice(connections.values(), page[0], sum(page)))
        return (yield from _records(shown, now)), len(connections)
    found: list[ConnectionRecord] = []
    if state != "closed":
        found += yield from _records(_open(observed, cid, query.get("acc", "")), now)
    if state != "open":
        found += connections.history
    if cid:
        found = [one for one in found if one.cid == cid]
    if query.get("user"):
        found = [one for one in found if one.user == query["user"]]
    if query.get("acc"):
        found = [one for one in found if one.account == query["acc"]]
    if pattern:
        found = yield from _taking(observed, found, pattern)
    return found, None


def _open(observed: Observed, cid: int, account: str) -> list[OpenConnection]:
    """Open connections; as far as it is cheap, only those that are asked for."""
    connections = observed.server.connections
    named = observed.server.accounts.get(account) if account else None
    if cid:
        cids = [cid]
    elif named is not None:
        cids = sorted(named.connections)
    else:
        return list(connections.values())
    return [connections[one] for one in cids if one in connections]


def _records(shown: list[OpenConnection], now: float) -> Steps[list[ConnectionRecord]]:
    found = []
    for position, one in enumerate(shown):
        found.append(record(one, now=now))
        if position % CONNECTIONS_PER_STEP == CONNECTIONS_PER_STEP - 1:
            yield
    return found


def _taking(
    observed: Observed, found: list[ConnectionRecord], pattern: bytes
) -> Steps[list[ConnectionRecord]]:
    """Those that have, or had, a subscription that overlaps the pattern."""
    taking = []
    for one in found:
        connection = observed.server.connections.get(one.cid)
        if connection is not None:
            subjects = [sub.subject for sub in connection.subs.values()]
        else:
            subjects = [sub.subject.encode() for sub in one.subscriptions]
        for first in range(0, len(subjects), STEP_ITEMS):
            if any(collides(each, pattern) for each in subjects[first : first + STEP_ITEMS]):
                taking.append(one)
                break
            yield
        yield
    return taking


def _connection(found: ConnectionRecord, now: float, *, auth: bool) -> Document:
    end = now if found.stopped is None else found.stopped
    document: Document = {
        "cid": found.cid,
        "kind": "Client",
        "type": found.kind,
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
        "subscriptions": found.subscription_count,
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
        document["name_tag"] = found.account_label
        given = {"jwt": found.jwt, "issuer_key": found.issuer, "tags": list(found.tags)}
        document |= {name: value for name, value in given.items() if value}
    return document


def subscription(found: SubscriptionRecord) -> Document:
    document: Document = {"subject": found.subject}
    if found.queue:
        document["qgroup"] = found.queue
    document |= {"sid": found.sid, "msgs": found.msgs, "cid": found.cid}
    if found.max_msgs:
        document["max"] = found.max_msgs
    return document


def subsz(observed: Observed, query: Query) -> Steps[Document]:
    """Raises BadQuery."""
    offset, limit = _page(query)
    accounts = [
        account
        for account in observed.server.accounts.values()
        if query.get("acc") in (None, "", account.name)
    ]
    document: Document = {
        "server_id": observed.id,
        "now": timestamp(time.time()),
        **sublist(accounts),
        "total": 0,
        "offset": offset,
        "limit": limit,
    }
    if boolean(query, "subs") or query.get("test"):
        document |= yield from _listed(observed, query, offset=offset, limit=limit)
    return document


def _listed(observed: Observed, query: Query, *, offset: int, limit: int) -> Steps[Document]:
    """One page. Connections before it are counted, not walked, unless there is a test subject."""
    test = query.get("test", "").encode()
    page: list[Document] = []
    total = looked_at = 0
    for connection in _open(observed, 0, query.get("acc") or ""):
        subs = connection.subs
        count = len(subs)
        if test:
            if looked_at >= TESTED_MAX:
                break
            looked_at += count
            found = yield from _matching(subs, test)
        elif total + count <= offset or len(page) >= limit:
            total += count
            continue
        else:
            found = list(islice(subs.values(), max(0, offset - total) + limit))
        for position, sub in enumerate(found[max(0, offset - total) :][: limit - len(page)]):
            page.append(_subscription_entry(connection, sub))
            if position % STEP_ITEMS == STEP_ITEMS - 1:
                yield
        total += len(found) if test else count
        yield
    return {"total": total, "offset": offset, "limit": limit, "subscriptions_list": page}


def _matching(subs: Mapping[bytes, Subscription], test: bytes) -> Steps[list[Subscription]]:
    found = []
    for position, sub in enumerate(list(subs.values())):
        if matches(test, sub.subject):
            found.append(sub)
        if position % STEP_ITEMS == STEP_ITEMS - 1:
            yield
    return found


def _subscription_entry(connection: OpenConnection, sub: Subscription) -> Document:
    entry: Document = {
        "account": connection.account.name,
        "account_tag": connection.account.name,
        "subject": sub.subject.decode(errors="replace"),
        "sid": sub.sid.decode(errors="replace"),
        "msgs": sub.delivered,
        "cid": connection.cid,
    }
    if sub.queue:
        entry["qgroup"] = sub.queue.decode(errors="replace")
    return entry
