"""`jetraft bench`: measurements of one server, or of ours against nats-server.

Owns: the options of a measurement.
May not touch: how it is measured; that is broker.bench and loads.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from broker.cli.connect.options import AT_LEAST_ONE, Destination, connects
from broker.cli.end_by_signal import end_by_signal
from broker.cli.lazy import CommandGroup
from broker.cli.measure.figures import report

size_option = click.option(
    "--size", default=128, show_default=True, type=click.IntRange(0, 2**20),
    help="Bytes per message.",
)  # fmt: skip
window_option = click.option(
    "--window", default=16_384, show_default=True, type=AT_LEAST_ONE,
    help="Maximum number of messages in flight.",
)  # fmt: skip
replicas_option = click.option(
    "--replicas", default=1, show_default=True, type=click.IntRange(1, 5),
    help="Replicas of the stream.",
)  # fmt: skip
samples_option = click.option(
    "--samples", default=1000, show_default=True, type=AT_LEAST_ONE,
    help="Number of single operations that measure the latency.",
)  # fmt: skip


def count_option(default: int) -> Callable[..., Any]:
    return click.option(
        "--count", default=default, show_default=True, type=AT_LEAST_ONE, help="Number of messages."
    )


@click.group(cls=CommandGroup)
def bench() -> None:
    """Measure a server, alone or against nats-server. Streams for it have names that begin with
    BENCH and are deleted afterwards."""


@bench.command("pub")
@size_option
@count_option(300_000)
@window_option
@replicas_option
@connects
def bench_pub(
    *, size: int, count: int, window: int, replicas: int, to: Destination, as_json: bool
) -> None:
    """Publish to a stream and wait for every ack."""
    from broker.cli.measure.loads import stored

    report(stored(to, size, count, window, replicas, samples=0, consume=False), as_json=as_json)


@bench.command("js")
@size_option
@count_option(100_000)
@window_option
@replicas_option
@samples_option
@connects
def bench_js(
    *, size: int, count: int, window: int, replicas: int, samples: int, to: Destination,
    as_json: bool,
) -> None:  # fmt: skip
    """Publish to a stream, many at a time and one by one, then fetch and ack everything."""
    from broker.cli.measure.loads import stored

    report(
        stored(to, size, count, window, replicas, samples=samples, consume=True), as_json=as_json
    )


@bench.command("sub")
@size_option
@count_option(300_000)
@connects
def bench_sub(*, size: int, count: int, to: Destination, as_json: bool) -> None:
    """Publish without a stream, and receive it on another connection."""
    from broker.cli.measure.loads import received

    report(received(to, size, count), as_json=as_json)


@bench.command("request")
@size_option
@samples_option
@connects
def bench_request(*, size: int, samples: int, to: Destination, as_json: bool) -> None:
    """Requests to a responder that this command starts, one after the other."""
    from broker.cli.measure.loads import requested

    report(requested(to, size, samples), as_json=as_json)


@bench.command("kv")
@size_option
@count_option(50_000)
@window_option
@replicas_option
@samples_option
@connects
def bench_kv(
    *, size: int, count: int, window: int, replicas: int, samples: int, to: Destination,
    as_json: bool,
) -> None:  # fmt: skip
    """Put and get keys of a bucket, many at a time and one by one."""
    from broker.cli.measure.loads import keyed

    report(keyed(to, size, count, window, replicas, samples=samples), as_json=as_json)


@bench.command("scan")
@click.argument("name")
@connects
def bench_scan(*, name: str, to: Destination, as_json: bool) -> None:
    """Read a stream in bulk, as Spark does. Needs JetRaft servers."""
    from broker.cli.measure.loads import scanned

    report(scanned(to, name), as_json=as_json)


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
