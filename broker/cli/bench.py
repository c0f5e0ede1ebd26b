"""`jetraft bench`: measurements of one server, or of ours against nats-server.

Owns: the options of a measurement.
May not touch: how it is measured; that is broker.bench."""

from __future__ import annotations

from urllib.parse import urlparse

import click

from broker.cli.client import server_option
from broker.cli.connect.options import AT_LEAST_ONE
from broker.cli.end_by_signal import end_by_signal


@click.group()
def bench() -> None:
    """Measure publishing, alone or against nats-server."""


@bench.command("pub")
@click.option(
    "--size", default=128, show_default=True, type=click.IntRange(0, 2**20),
    help="Bytes per message.",
)  # fmt: skip
@click.option("--count", default=300_000, show_default=True, type=AT_LEAST_ONE, help="Messages.")
@click.option(
    "--window", default=16_384, show_default=True, type=AT_LEAST_ONE,
    help="Maximum number of unacknowledged messages.",
)  # fmt: skip
@click.option(
    "--replicas", default=1, show_default=True, type=click.IntRange(1, 5),
    help="Replicas of the stream.",
)  # fmt: skip
@server_option
def bench_pub(*, size: int, count: int, window: int, replicas: int, server: str) -> None:
    """Publish to a new stream BENCH and wait for every ack; the stream is deleted afterwards."""
    from broker.bench.load import LoadClient
    from broker.bench.scenarios import create_stream

    first = urlparse(server.split(",", maxsplit=1)[0])
    client = LoadClient(first.port or 4222, host=first.hostname or "127.0.0.1")
    create_stream(client, "BENCH", replicas=replicas)
    load = client.publish_acked("BENCH.a", size=size, count=count, window=window)
    client.request("$JS.API.STREAM.DELETE.BENCH")
    client.close()
    click.echo(
        f"{load.messages:,} messages of {size} B in {load.seconds:.2f} s: {load.per_second:,.0f}/s"
    )


@bench.command("peers")
@click.option(
    "--rounds", default=3, show_default=True, type=AT_LEAST_ONE,
    help="Runs per server and scenario.",
)  # fmt: skip
@click.option(
    "--only", multiple=True, help="Only scenarios whose name contains this; may be repeated."
)
def bench_peers(*, rounds: int, only: tuple[str, ...]) -> None:
    """Run jetraft and nats-server in turn on this machine and compare them."""
    from broker.bench.peers import SCENARIOS, compare

    names = [name for name in SCENARIOS if not only or any(part in name for part in only)]
    if not names:
        raise click.UsageError("no such scenario; choose from:\n  " + "\n  ".join(SCENARIOS))
    with end_by_signal():
        compare(rounds=rounds, names=names, say=click.echo)
