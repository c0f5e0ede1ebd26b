"""`jetraft rtt` and `jetraft info`: the connection itself.

Owns: their options and output.
May not touch: the server's internals."""

from __future__ import annotations

from dataclasses import replace

import click

from broker.cli.connect import api
from broker.cli.connect.blocking import connected
from broker.cli.connect.failures import CannotConnect, CommandFailed
from broker.cli.connect.options import AT_LEAST_ONE, Destination, connects, shown
from broker.cli.output.tables import facts, show_json, table
from broker.cli.output.units import latency, size


@click.command()
@click.option("--count", default=5, show_default=True, type=AT_LEAST_ONE, help="Pings per server.")
@connects
def rtt(*, count: int, to: Destination, as_json: bool) -> None:
    """Measure the round trip to every server that is named."""
    rows: list[tuple[str, str, list[float]]] = []
    problem: CannotConnect | None = None
    for url in to.servers:
        try:
            with connected(replace(to, servers=(url,))) as client:
                times = sorted(client.flush() for _ in range(count))
                rows.append((shown(url), str(client.info.get("server_name", "")), times))
        except CannotConnect as failed:
            problem = failed
            click.echo(f"{shown(url)}: {failed.message}", err=True)
    if not rows and problem is not None:
        raise problem
    if as_json:
        show_json([
            {"url": url, "server": name, "seconds": {
                "min": times[0], "median": times[len(times) // 2], "max": times[-1]}}
            for url, name, times in rows
        ])  # fmt: skip
        return
    table(
        ("url", "server", "min", "median", "max"),
        [
            (url, name, *(latency(one) for one in (times[0], times[len(times) // 2], times[-1])))
            for url, name, times in rows
        ],
        empty="no servers",
    )


@click.command()
@connects
def info(*, to: Destination, as_json: bool) -> None:
    """Show the server that this user is connected to, and the JetStream account."""
    with connected(to) as client:
        seconds = client.flush()
        try:
            account = api.call(client, "INFO")
        except CommandFailed as refused:
            account = {"error": refused.message}
        server = client.info
        url = shown(client.url)
    if as_json:
        show_json({"url": url, "rtt_seconds": seconds, "server": server, "jetstream": account})
        return
    facts(
        f"connected to {server.get('server_name') or server.get('server_id')} ({url})",
        [
            (
                # Ours tells clients the version of nats-server whose protocol it speaks.
                "protocol" if str(server.get("go", "")).startswith("python") else "version",
                server.get("version"),
            ),
            ("cluster", server.get("cluster")),
            ("client", f"{server.get('client_ip', '')} (id {server.get('client_id')})"),
            ("largest message", size(int(server.get("max_payload", 0)))),
            ("TLS", "required" if server.get("tls_required") else "no"),
            ("other servers", ", ".join(server.get("connect_urls") or [])),
            ("round trip", latency(seconds)),
            ("JetStream", account.get("error") or f"{account.get('streams', 0)} streams, "
             f"{account.get('consumers', 0)} consumers, "
             f"{size(int(account.get('storage', 0)))} in files, "
             f"{size(int(account.get('memory', 0)))} in memory"),
        ],
    )  # fmt: skip
