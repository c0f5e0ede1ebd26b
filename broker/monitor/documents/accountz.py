"""/accountz and /accstatz: the accounts of this server, one of them in detail, their numbers.

Owns: the documents.
May not touch: accounts, beyond reading them.
Spec: NATS monitoring, /accountz and /accstatz."""

from __future__ import annotations

import time
from collections.abc import Sequence

from broker.accounts import GLOBAL_ACCOUNT, Account
from broker.accounts.mappings import destinations
from broker.config.options import Export, Import, SubjectMapping
from broker.monitor.documents.query import BadQuery
from broker.monitor.observed import Observed
from broker.server.process.times import timestamp
from broker.server.services import Document, Query
from broker.subjects import Steps

_MANY = (b"$SYS.REQ.ACCOUNT.*.CONNZ", b"$SYS.REQ.ACCOUNT.*.STATZ")
_ONE = (b"$SYS.DEBUG.SUBSCRIBERS", b"$SYS.REQ.USER.*.INFO")
_USER = b"$SYS.REQ.USER.INFO"
_JETSTREAM = b"$JS.API.>"


def accountz(observed: Observed, query: Query) -> Document:
    """Raises BadQuery."""
    document: Document = {"system_account": observed.server.options.system_account}
    name = query.get("acc")
    if name:
        return document | {"account_detail": account_info(observed, name)}
    return document | {"accounts": list(observed.server.accounts)}


def account_info(observed: Observed, name: str) -> Document:
    """Raises BadQuery."""
    account = observed.server.accounts.get(name)
    if account is None:
        raise BadQuery(f"Account {name} does not exist")
    document: Document = {"account_name": name, "name_tag": account.label}
    document["update_time"] = timestamp(observed.server.settings.loaded)
    if name == observed.server.options.system_account:
        document["is_system"] = True
    document |= {
        "expired": False,
        "complete": True,
        "jetstream_enabled": has_jetstream(observed, name),
        "leafnode_connections": observed.server.leafs.count(name),
        "client_connections": len(account.connections),
        "subscriptions": len(account.subs),
    }
    options = account.options
    exports, imports = every_account(observed, name)
    if exports or options.exports:
        document["exports"] = [_export(one) for one in (*options.exports, *exports)]
    if imports or options.imports:
        document["imports"] = [_import(one) for one in (*options.imports, *imports)]
    if options.mappings:
        document["mappings"] = {one.source: _destinations(one) for one in options.mappings}
    document["sublist_stats"] = sublist([account])
    return document


def every_account(observed: Observed, name: str) -> tuple[list[Export], list[Import]]:
    """What the system account exports, and every account imports, without being configured."""
    system = observed.server.options.system_account
    has_streams = observed.server.options.jetstream is not None
    if name == system:
        exports = [Export(subject, service=True, many_answers=True) for subject in _MANY]
        exports += [Export(subject, service=True) for subject in _ONE]
        if has_streams:
            exports.append(Export(_JETSTREAM, service=True))
        return exports, [_to_system(system, b"$SYS.REQ.USER.%b.INFO", name, _USER, share=True)]
    connz = b"$SYS.REQ.ACCOUNT.%b.CONNZ"
    imports = [
        _to_system(system, connz, name, b"$SYS.REQ.ACCOUNT.PING.CONNZ"),
        _to_system(system, connz, name, b"$SYS.REQ.SERVER.PING.CONNZ"),
        _to_system(system, b"$SYS.REQ.ACCOUNT.%b.STATZ", name, b"$SYS.REQ.ACCOUNT.PING.STATZ"),
        _to_system(system, b"$SYS.REQ.USER.%b.INFO", name, _USER, share=True),
    ]
    if has_streams:
        imports.append(Import(system, _JETSTREAM, _JETSTREAM, service=True, share=True))
    return [], imports


def _to_system(
    system: str, pattern: bytes, name: str, local: bytes, *, share: bool = False
) -> Import:
    return Import(system, pattern % name.encode(), local, service=True, share=share)


def accstatz(
    observed: Observed, names: Sequence[str] = (), *, unused: bool = False
) -> Steps[Document]:
    """The numbers of these accounts, or of all; `unused`: also of those without connections."""
    accounts, leafs = observed.server.accounts, observed.server.leafs
    wanted = [accounts[name] for name in names if name in accounts] or list(accounts.values())
    shown = []
    for account in wanted:
        if unused or account.connections or leafs.count(account.name):
            shown.append(account_numbers(account, leafs=leafs.count(account.name)))
            yield
    return {"server_id": observed.id, "now": timestamp(time.time()), "account_statz": shown}


def account_numbers(account: Account, *, leafs: int) -> Document:
    """Traffic of clients; messages between nodes are not counted per account."""
    traffic = account.traffic()
    elsewhere = {kind: {"msgs": 0, "bytes": 0} for kind in ("gateways", "routes", "leafs")}
    return {
        "acc": account.name,
        "name": account.label,
        "conns": len(account.connections),
        "leafnodes": leafs,
        "total_conns": len(account.connections) + leafs,
        "num_subscriptions": len(account.subs),
        "sent": {"msgs": traffic.out_msgs, "bytes": traffic.out_bytes, **elsewhere},
        "received": {"msgs": traffic.in_msgs, "bytes": traffic.in_bytes, **elsewhere},
        "slow_consumers": 0,
    }


def sublist(accounts: list[Account]) -> Document:
    """The totals of their subject tables."""
    totals = [account.subs.statistics for account in accounts]
    looked_up = sum(one.matches for one in totals)
    return {
        "num_subscriptions": sum(len(account.subs) for account in accounts),
        "num_cache": sum(account.subs.cache_size for account in accounts),
        "num_inserts": sum(one.inserts for one in totals),
        "num_removes": sum(one.removes for one in totals),
        "num_matches": looked_up,
        "cache_hit_rate": sum(one.cache_hits for one in totals) / looked_up if looked_up else 0,
        "max_fanout": 0,
        "avg_fanout": 0,
    }


def has_jetstream(observed: Observed, name: str) -> bool:
    options = observed.server.options.jetstream
    return options is not None and name in (options.accounts or (GLOBAL_ACCOUNT,))


def _export(rule: Export) -> Document:
    document: Document = {
        "subject": _text(rule.subject),
        "type": "service" if rule.service else "stream",
    }
    if rule.accounts is not None:
        document["approved_accounts"] = list(rule.accounts)
    if rule.service:
        document["response_type"] = "Streamed" if rule.many_answers else "Singleton"
    return document


def _import(rule: Import) -> Document:
    return {
        "subject": _text(rule.subject),
        "account": rule.account,
        **({"to": _text(rule.local)} if rule.service else {}),
        "local_subject": _text(rule.local),
        "type": "service" if rule.service else "stream",
        "invalid": False,
        "share": rule.share,
        "tracking": False,
    }


def _destinations(rule: SubjectMapping) -> list[Document]:
    """Weights add up within each list: that for any cluster, then those of named clusters."""
    found: list[Document] = []
    for cluster in ["", *sorted({one.cluster for one in rule.destinations} - {""})]:
        total = 0
        for one in destinations(rule, cluster):
            total += one.weight
            found.append({"subject": one.subject, "weight": total})
            if cluster:
                found[-1]["cluster"] = cluster
    return found


def _text(subject: bytes) -> str:
    return subject.decode(errors="replace")
