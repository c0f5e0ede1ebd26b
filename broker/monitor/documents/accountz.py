"""/accountz: the accounts of this server, and one of them in detail.

Owns: the documents.
May not touch: accounts beyond reading them.
Spec: core contract 7 and 9.2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.monitor.documents.query import BadQuery
from broker.server.process.times import timestamp
from broker.server.services import Document, Query

if TYPE_CHECKING:
    from broker.accounts import Account
    from broker.config.options import Export, Import
    from broker.server.server import Server


def accountz(server: Server, query: Query) -> Document:
    """Raises BadQuery."""
    document: Document = {"system_account": server.options.system_account}
    name = query.get("acc")
    if name:
        return document | {"account_detail": account_info(server, name)}
    return document | {"accounts": list(server.accounts)}


def account_info(server: Server, name: str) -> Document:
    """Raises BadQuery."""
    account = server.accounts.get(name)
    if account is None:
        raise BadQuery(f"Account {name} does not exist")
    document: Document = {"account_name": name}
    document["update_time"] = timestamp(server.config_loaded)
    if name == server.options.system_account:
        document["is_system"] = True
    document |= {
        "expired": False,
        "complete": True,
        "jetstream_enabled": has_jetstream(server, name),
        "leafnode_connections": 0,
        "client_connections": len(account.connections),
        "subscriptions": len(account.subs),
    }
    options = account.options
    if options.exports:
        document["exports"] = [_export(one) for one in options.exports]
    if options.imports:
        document["imports"] = [_import(one) for one in options.imports]
    document["sublist_stats"] = sublist([account])
    return document


def sublist(accounts: list[Account]) -> Document:
    """Numbers of their subject tables, taken together."""
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


def has_jetstream(server: Server, name: str) -> bool:
    options = server.options.jetstream
    return options is not None and name in (options.accounts or (server.global_account.name,))


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
        "to": _text(rule.local),
        "local_subject": _text(rule.local),
        "type": "service" if rule.service else "stream",
        "invalid": False,
        "share": rule.share,
        "tracking": False,
    }


def _text(subject: bytes) -> str:
    return subject.decode(errors="replace")
