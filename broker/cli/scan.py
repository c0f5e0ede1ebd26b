"""`jetraft scan`: bulk reads.

Owns: the options and output of these commands.
May not touch: the server's internals.
A server without bulk reads (nats-server) is read through a consumer instead."""

from __future__ import annotations

import base64
import csv
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO

import click

from broker.cli.connect import api
from broker.cli.connect.blocking import connected
from broker.cli.connect.failures import CommandFailed
from broker.cli.connect.options import AT_LEAST_ONE, Destination, connects
from broker.cli.lazy import CommandGroup
from broker.cli.output.message_text import message_fields, payload_text
from broker.cli.output.tables import at_terminal, json_option, show_json, show_json_line, table
from broker.cli.output.times import rfc3339
from broker.cli.scanning import BulkUnavailable, bulk_rows, write_parquet
from broker.cli.streams.reading import StreamMessage, stored_messages
from broker.server.process.printable import printable

ANSWER_WITHIN_S = 10.0
_OF_NODES = ("scans_open", "scans_total", "scans_refused_total", "scan_sent_bytes_total")

Reading = tuple[str, dict[str, str], float]


@click.group(cls=CommandGroup)
def scan() -> None:
    """Read a stream as a table; show bulk reads and the lag of streaming queries."""


@scan.command("cat")
@click.argument("name")
@click.option(
    "--format", "form", type=click.Choice(["table", "csv", "json", "parquet"]), default="table",
    show_default=True, help="Output format.",
)  # fmt: skip
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path),
    help="Write to this file (required for parquet).",
)  # fmt: skip
@click.option("--first", type=AT_LEAST_ONE, default=1, help="Start at this sequence.")
@click.option("--count", type=AT_LEAST_ONE, help="Maximum number of messages.")
@click.option("--subject", default="", help="Only messages on this subject (wildcards work).")
@connects
def cat(
    *, name: str, form: str, output: Path | None, first: int, count: int | None, subject: str,
    to: Destination, as_json: bool,
) -> None:  # fmt: skip
    """Print a stream as a table, csv, JSON lines or a parquet file: sequence, time, subject,
    headers, data. In csv and tables, data that is not text is in base64."""
    form = "json" if as_json else form
    if form == "parquet" and output is None:
        raise click.UsageError("parquet needs --output FILE")
    rows = islice(_rows(to, name, first, subject), count)
    if form == "parquet":
        assert output is not None
        written = write_parquet(rows, output)
        click.echo(f"wrote {written:,} messages to {output}")
        return
    if output is None:
        _write(rows, form, sys.stdout, safe=at_terminal())
        return
    try:
        with output.open("w", newline="") as file:
            _write(rows, form, file, safe=False)
    except OSError as error:
        raise CommandFailed(f"{output}: {error}") from error


def _rows(to: Destination, name: str, first: int, subject: str) -> Iterator[StreamMessage]:
    try:
        yield from bulk_rows(to, api.name(name), first, subject)
    except BulkUnavailable:
        with connected(to) as client:
            info = api.stream_info(client, name)
            yield from stored_messages(client, info, first=first, subject=subject)


def _write(rows: Iterator[StreamMessage], form: str, file: IO[str], *, safe: bool) -> None:
    if form == "json":
        for row in rows:
            when = rfc3339(row.time_ns)
            fields = message_fields(row.subject, row.data, row.headers, seq=row.seq, time=when)
            show_json_line(fields, file)
        return
    headings = ("seq", "time", "subject", "headers", "data")
    cells = ([row.seq, rfc3339(row.time_ns), row.subject, _headers(row), _text(row.data)]
             for row in rows)  # fmt: skip
    if form == "table":
        table(headings, [[*row[:4], payload_text(str(row[4]).encode())] for row in cells],
              empty="no messages")  # fmt: skip
        return
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(headings)
    for line in cells:
        writer.writerow([printable(str(cell)) for cell in line] if safe else line)


def _headers(row: StreamMessage) -> str:
    return "; ".join(f"{name}: {value}" for name, value in row.headers)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return base64.b64encode(data).decode()


@scan.command("ls")
@click.option(
    "--monitor",
    default="http://127.0.0.1:8222",
    show_default=True,
    help="Monitoring URLs of the nodes, separated by commas.",
)
@json_option
def ls(*, monitor: str, as_json: bool) -> None:
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
    if as_json:
        show_json({
            "readers": [dict(zip(("account", "stream", "reader", "lag"), one, strict=True))
                        for one in sorted(readers)],
            "nodes": [dict(zip(("node", *_OF_NODES), one, strict=True)) for one in nodes],
        })  # fmt: skip
        return
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
