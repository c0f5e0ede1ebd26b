"""`jetraft server`: all servers that can be reached from here.

Owns: the options and output of these commands.
May not touch: the server's internals; the commands need a user of the system account."""

from __future__ import annotations

import time
from typing import Any

import click

from broker.cli.connect.blocking import connected
from broker.cli.connect.failures import CommandFailed
from broker.cli.connect.options import Destination, connects
from broker.cli.lazy import LazyGroup
from broker.cli.operations.system_requests import asked, every_server
from broker.cli.output.tables import facts, show_json, table
from broker.cli.output.times import seconds_ago
from broker.cli.output.units import age, size

Document = dict[str, Any]
_OTHERS = {"check": ("broker.cli.operations.checks", "Checks for a monitoring system.")}


@click.group(cls=LazyGroup, lazy=_OTHERS)
def server() -> None:
    """Show servers and their health. Needs a user of the system account."""


@server.command("ls")
@connects
def server_ls(*, to: Destination, as_json: bool) -> None:
    """List the servers with their clusters, connections and load."""
    with connected(to) as client:
        found = every_server(client)
    if as_json:
        show_json(found)
        return
    now = time.time()
    rows = [
        (
            one["server"].get("name", ""), one["server"].get("cluster", ""),
            one["server"].get("host", ""), one["server"].get("ver", ""),
            "yes" if one["server"].get("jetstream") else "no",
            int(one["statsz"].get("connections", 0)), int(one["statsz"].get("subscriptions", 0)),
            size(int(one["statsz"].get("mem", 0))), f"{one['statsz'].get('cpu', 0):.1f} %",
            int(one["statsz"].get("slow_consumers", 0)),
            age(seconds_ago(str(one["statsz"].get("start", "")), now) or 0.0),
        )
        for one in found
    ]  # fmt: skip
    headings = (
        "name", "cluster", "host", "version", "jetstream", "clients", "subs", "memory", "cpu",
        "slow", "uptime",
    )  # fmt: skip
    table(headings, rows, empty="no servers")


@server.command("info")
@click.argument("name", required=False)
@connects
def server_info(*, name: str | None, to: Destination, as_json: bool) -> None:
    """Show one server by its name; without NAME the one that this command is connected to."""
    with connected(to) as client:
        wanted = name or str(client.info.get("server_name", ""))
        found = asked(client, "VARZ", {"server_name": wanted}, expected=1)
    data: Document = found[0]["data"]
    if as_json:
        show_json(data)
        return
    jetstream = (data.get("jetstream") or {}).get("stats") or {}
    limits = (data.get("jetstream") or {}).get("config") or {}
    facts(
        f"server {data.get('server_name')}",
        [
            ("id", data.get("server_id")), ("version", data.get("version")),
            ("address", f"{data.get('host')}:{data.get('port')}"),
            ("cluster", (data.get("cluster") or {}).get("name")),
            ("uptime", data.get("uptime")),
            ("memory", size(int(data.get("mem", 0)))), ("cpu", f"{data.get('cpu', 0):.1f} %"),
            ("connections", f"{data.get('connections', 0):,} of "
             f"{data.get('max_connections', 0):,}"),
            ("subscriptions", int(data.get("subscriptions", 0))),
            ("received", _traffic(data, "in")), ("sent", _traffic(data, "out")),
            ("slow consumers", int(data.get("slow_consumers", 0))),
            ("largest message", size(int(data.get("max_payload", 0)))),
            ("JetStream files", f"{size(int(jetstream.get('storage', 0)))} of "
             f"{size(int(limits.get('max_storage', 0)))}" if limits else "off"),
            ("JetStream memory", f"{size(int(jetstream.get('memory', 0)))} of "
             f"{size(int(limits.get('max_memory', 0)))}" if limits else None),
        ],
    )  # fmt: skip


def _traffic(data: Document, way: str) -> str:
    messages, bytes_ = int(data.get(f"{way}_msgs", 0)), int(data.get(f"{way}_bytes", 0))
    return f"{messages:,} messages, {size(bytes_)}"


@server.command("report")
@connects
def server_report(*, to: Destination, as_json: bool) -> None:
    """Show JetStream on every server: what it holds, its limits, its API."""
    with connected(to) as client:
        found = asked(client, "JSZ", expected=len(every_server(client)))
    if as_json:
        show_json(found)
        return
    rows = [_report(one["server"], one.get("data") or {}) for one in found]
    headings = (
        "name", "meta", "streams", "consumers", "messages", "bytes", "files", "memory", "api",
        "errors",
    )  # fmt: skip
    table(headings, rows, empty="no servers")


def _report(server: Document, data: Document) -> tuple[object, ...]:
    meta = data.get("meta_cluster") or {}
    leads = bool(meta) and meta.get("leader") == server.get("name")
    limit = int((data.get("config") or {}).get("max_storage", 0))
    used = int(data.get("storage", 0))
    api = data.get("api") or {}
    return (
        server.get("name", ""), "leader" if leads else "", int(data.get("streams", 0)),
        int(data.get("consumers", 0)), int(data.get("messages", 0)),
        size(int(data.get("bytes", 0))),
        f"{100 * used / limit:.0f} %" if limit else "", size(int(data.get("memory", 0))),
        int(api.get("total", 0)), int(api.get("errors", 0)),
    )  # fmt: skip


@server.command("healthz")
@connects
def server_healthz(*, to: Destination, as_json: bool) -> None:
    """Ask every server whether it is healthy; exit code 1 if one is not."""
    with connected(to) as client:
        found = asked(client, "HEALTHZ", expected=len(every_server(client)))
    if as_json:
        show_json(found)
    else:
        rows = [
            (one["server"].get("name", ""), (one.get("data") or {}).get("status", "unknown"),
             (one.get("data") or {}).get("error", ""))
            for one in found
        ]  # fmt: skip
        table(("name", "status", "reason"), rows, empty="no servers")
    sick = [
        str(one["server"].get("name", ""))
        for one in found
        if (one.get("data") or {}).get("status") != "ok"
    ]
    if sick:
        raise CommandFailed(f"not healthy: {', '.join(sick)}")
