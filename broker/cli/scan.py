"""`jetraft scan`: bulk reads.

Owns: the options and output of these commands.
May not touch: the server's internals."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator

import click

from broker.cli.output.tables import table

ANSWER_WITHIN_S = 10.0
_OF_NODES = ("scans_open", "scans_total", "scans_refused_total", "scan_sent_bytes_total")

Reading = tuple[str, dict[str, str], float]


@click.group()
def scan() -> None:
    """Show bulk reads and the lag of streaming queries."""


@scan.command("ls")
@click.option(
    "--monitor",
    default="http://127.0.0.1:8222",
    show_default=True,
    help="Monitoring addresses of the nodes, separated by commas.",
)
def ls(*, monitor: str) -> None:
    """List streaming queries with their lag, and what each node has sent."""
    readers: list[tuple[str, str, str, int]] = []
    nodes: list[tuple[str | int, ...]] = []
    for address in filter(None, (part.strip().rstrip("/") for part in monitor.split(","))):
        readings = list(_readings(address))
        numbers = {name: int(value) for name, names, value in readings if not names}
        nodes.append((address, *(numbers.get(f"jetraft_{name}", 0) for name in _OF_NODES)))
        readers += [
            (names["account"], names["stream"], names["reader"], int(value))
            for name, names, value in readings
            if name == "jetraft_reader_lag"
        ]
    table(("account", "stream", "reader", "lag"), sorted(readers), empty="No streaming queries.")
    click.echo()
    table(("node", "open", "completed", "refused", "bytes sent"), nodes, empty="No nodes.")


def _readings(address: str) -> Iterator[Reading]:
    from prometheus_client.parser import text_string_to_metric_families

    if not address.startswith(("http://", "https://")):
        raise click.ClickException(f"--monitor {address}: write http://host:port")
    url = f"{address}/metrics"
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_WITHIN_S) as answer:  # noqa: S310
            text = answer.read().decode()
    except (OSError, ValueError, urllib.error.URLError) as error:
        raise click.ClickException(f"--monitor {address}: {error}") from error
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value
