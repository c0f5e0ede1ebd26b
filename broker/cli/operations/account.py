"""`jetraft account`: what an account may use, and what it uses.

Owns: the options and output of these commands.
May not touch: the server's internals."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import click

from broker.cli.connect import api
from broker.cli.connect.blocking import connected
from broker.cli.connect.options import Destination, connects
from broker.cli.lazy import CommandGroup
from broker.cli.operations.system_requests import asked, every_server
from broker.cli.output.tables import facts, show_json, table
from broker.cli.output.units import size

Document = dict[str, Any]


@click.group(cls=CommandGroup)
def account() -> None:
    """Show the limits of accounts and their use."""


@account.command("info")
@connects
def account_info(*, to: Destination, as_json: bool) -> None:
    """Show the JetStream limits of this user's account, and what is used of them."""
    with connected(to) as client:
        found = api.call(client, "INFO")
    if as_json:
        show_json(found)
        return
    tiers: Document = found.get("tiers") or {}
    facts("JetStream account", _usage(found) if not tiers else [("domain", found.get("domain"))])
    for name, tier in sorted(tiers.items()):
        facts(f"tier {name}", _usage(tier))
    api_use = found.get("api") or {}
    facts("API", [("requests", int(api_use.get("total", 0))),
                  ("errors", int(api_use.get("errors", 0)))])  # fmt: skip


def _usage(found: Document) -> list[tuple[str, object]]:
    limits: Document = found.get("limits") or {}

    def of(used: str, limit: str, *, sized: bool) -> str:
        most, has = int(limits.get(limit, -1)), int(found.get(used, 0))
        shown = (size(has), size(most)) if sized else (f"{has:,}", f"{most:,}")
        return f"{shown[0]} of {shown[1] if most > 0 else 'unlimited'}"

    return [
        ("memory", of("memory", "max_memory", sized=True)),
        ("storage", of("storage", "max_storage", sized=True)),
        ("streams", of("streams", "max_streams", sized=False)),
        ("consumers", of("consumers", "max_consumers", sized=False)),
        ("domain", found.get("domain")),
    ]


@account.command("report")
@connects
def account_report(*, to: Destination, as_json: bool) -> None:
    """Show all accounts: connections, traffic and JetStream. Needs a user of the system account."""
    with connected(to) as client:
        servers = len(every_server(client))
        subject = "$SYS.REQ.ACCOUNT.PING.STATZ"
        stats = asked(client, "", expected=servers, subject=subject)
        stored = asked(client, "JSZ", {"accounts": True}, expected=servers)
    sums: dict[str, Document] = defaultdict(lambda: defaultdict(int))
    for answer in stats:
        for one in (answer.get("data") or {}).get("account_statz") or []:
            row = sums[str(one.get("acc") or one.get("name") or "")]
            row["connections"] += int(one.get("conns", 0))
            row["subscriptions"] += int(one.get("num_subscriptions", 0))
            row["received_bytes"] += int((one.get("received") or {}).get("bytes", 0))
            row["sent_bytes"] += int((one.get("sent") or {}).get("bytes", 0))
            row["slow_consumers"] += int(one.get("slow_consumers", 0))
    for answer in stored:
        for one in (answer.get("data") or {}).get("account_details") or []:
            row = sums[str(one.get("name") or one.get("id") or "")]
            row["storage"] += int(one.get("storage", 0))
            row["memory"] += int(one.get("memory", 0))
    if as_json:
        show_json({name: dict(row) for name, row in sorted(sums.items())})
        return
    rows = [
        (name, row["connections"], row["subscriptions"], size(row["received_bytes"]),
         size(row["sent_bytes"]), row["slow_consumers"], size(row["storage"]), size(row["memory"]))
        for name, row in sorted(sums.items())
    ]  # fmt: skip
    headings = (
        "account", "clients", "subs", "received", "sent", "slow", "files", "memory",
    )  # fmt: skip
    table(headings, rows, empty="no accounts")
