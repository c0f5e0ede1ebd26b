"""`jetraft top` and `jetraft graph`: rates, as they are now.

Owns: their screens, and the rates between two samples.
May not touch: the server's internals; one request per page of streams and interval."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from broker.cli.connect import api
from broker.cli.connect.blocking import connected
from broker.cli.connect.client_shape import CommandClient
from broker.cli.connect.failures import CommandFailed
from broker.cli.connect.options import AT_LEAST_ONE, Destination, connects
from broker.cli.output.plots import columns_plot, write_png
from broker.cli.output.tables import at_terminal, show, show_json_line, table
from broker.cli.output.units import DURATION, NS, size

CLEAR = "\x1b[H\x1b[2J"
SHOWN = 20  # streams, at a terminal
Sample = dict[str, tuple[int, int, int, int]]  # last sequence, messages, bytes, consumers


@click.command()
@click.option(
    "--interval", "interval_ns", type=DURATION, default="2s", show_default=True,
    help="Between two samples.",
)  # fmt: skip
@click.option("--count", type=AT_LEAST_ONE, help="End after so many screens.")
@click.option("--rows", type=AT_LEAST_ONE, default=SHOWN, show_default=True, help="Streams shown.")
@connects
def top(*, interval_ns: int, count: int | None, rows: int, to: Destination, as_json: bool) -> None:
    """The busiest streams, live: messages and bytes per second. Ctrl-C ends it."""
    screens = 0
    with connected(to, patience_s=60.0) as client:
        for before, now, seconds in _samples(client, interval_ns / NS):
            screens += 1
            busiest = sorted(
                (
                    (name, (state[0] - before.get(name, state)[0]) / seconds,
                     (state[2] - before.get(name, state)[2]) / seconds, *state[1:])
                    for name, state in now.items()
                ),
                key=lambda one: (-one[1], one[0]),
            )  # fmt: skip
            if as_json:
                show_json_line([
                    {"stream": name, "messages_per_second": rate, "bytes_per_second": growth,
                     "messages": messages, "bytes": bytes_, "consumers": consumers}
                    for name, rate, growth, messages, bytes_, consumers in busiest
                ])  # fmt: skip
            else:
                _screen(busiest, rows)
            if screens == count:
                return


def _screen(busiest: Sequence[tuple[Any, ...]], rows: int) -> None:
    if at_terminal():
        click.echo(CLEAR, nl=False)
    rate = sum(one[1] for one in busiest)
    show(f"{len(busiest):,} streams, {rate:,.0f} messages/s  {time.strftime('%H:%M:%S')}")
    table(
        ("stream", "msgs/s", "growth/s", "messages", "size", "consumers"),
        [
            (name, f"{rate:,.1f}", size(max(round(growth), 0)), messages, size(bytes_), consumers)
            for name, rate, growth, messages, bytes_, consumers in busiest[:rows]
        ],
        empty="no streams",
    )


def _samples(client: CommandClient, every_s: float) -> Iterator[tuple[Sample, Sample, float]]:
    """The sample before, this one, and the seconds between them."""
    before, at = _sample(client), time.monotonic()
    while True:
        _wait(client, every_s)
        now, then = _sample(client), time.monotonic()
        yield before, now, then - at
        before, at = now, then


def _sample(client: CommandClient) -> Sample:
    return {
        str(info["config"]["name"]): (
            int(info["state"].get("last_seq", 0)), int(info["state"].get("messages", 0)),
            int(info["state"].get("bytes", 0)), int(info["state"].get("consumer_count", 0)),
        )
        for info in api.streams(client)
    }  # fmt: skip


def _wait(client: CommandClient, seconds: float) -> None:
    """PINGs of the server are answered meanwhile."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        client.next(left)


@click.command()
@click.argument("name")
@click.option(
    "--every", "every_ns", type=DURATION, default="1s", show_default=True, help="A column each.",
)  # fmt: skip
@click.option("--count", type=AT_LEAST_ONE, default=60, show_default=True, help="Columns.")
@click.option(
    "--png", type=click.Path(dir_okay=False, path_type=Path), help="Write a picture instead."
)
@connects
def graph(
    *, name: str, every_ns: int, count: int, png: Path | None, to: Destination, as_json: bool
) -> None:
    """Draw how many messages per second a stream gets: live at a terminal, at the end elsewhere,
    or as a PNG file."""
    rates: list[float] = []
    with connected(to, patience_s=60.0) as client:
        last, at = _last(client, name), time.monotonic()
        while len(rates) < count:
            _wait(client, every_ns / NS)
            now, then = _last(client, name), time.monotonic()
            rates.append((now - last) / (then - at))
            last, at = now, then
            if as_json:
                show_json_line({"stream": name, "messages_per_second": rates[-1]})
            elif png is None and at_terminal():
                click.echo(CLEAR + _drawn(name, rates))
    if png is not None:
        try:
            write_png(png, rates)
        except OSError as error:
            raise CommandFailed(f"{png}: {error}") from error
        show(f"wrote {png}: {len(rates)} columns, at most {max(rates):,.1f} messages/s")
    elif not as_json and not at_terminal():
        click.echo(_drawn(name, rates))


def _last(client: CommandClient, name: str) -> int:
    return int(api.stream_info(client, name)["state"].get("last_seq", 0))


def _drawn(name: str, rates: Sequence[float]) -> str:
    heading = f"{name}: {rates[-1]:,.1f} messages/s now, at most {max(rates):,.1f}"
    return "\n".join([heading, *columns_plot(rates)])
