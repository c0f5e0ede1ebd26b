"""`jetraft top` and `jetraft graph`: rates, as they are now.

Owns: their screens, and the rates between two samples.
May not touch: the server's internals."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
ALL_AFTER_S_EACH = 0.015  # all streams are asked for after so long, times their number


class TopState(NamedTuple):
    """Of one stream."""

    last_seq: int
    messages: int
    bytes: int
    consumers: int


@click.command()
@click.option(
    "--interval", "interval_ns", type=DURATION, default="2s", show_default=True,
    help="Time between two screens.",
)  # fmt: skip
@click.option("--count", type=AT_LEAST_ONE, help="Stop after this many screens.")
@click.option(
    "--rows", type=AT_LEAST_ONE, default=SHOWN, show_default=True, help="Number of streams to show."
)
@connects
def top(*, interval_ns: int, count: int | None, rows: int, to: Destination, as_json: bool) -> None:
    """The busiest streams, live: messages and bytes per second. Ctrl-C ends it."""
    with connected(to, patience_s=60.0) as client:
        rates = StreamRates(client, rows)
        rates.look()
        for screen in itertools.count(1):
            _wait(client, interval_ns / NS)
            rates.look()
            busiest = rates.busiest()
            if as_json:
                show_json_line([
                    {"stream": name, "messages_per_second": rate, "bytes_per_second": growth,
                     "messages": messages, "bytes": bytes_, "consumers": consumers}
                    for name, rate, growth, messages, bytes_, consumers in busiest
                ])  # fmt: skip
            else:
                _screen(busiest, rows)
            if screen == count:
                return


class StreamRates:
    """The last states of all streams, and their rates.

    All streams are asked for by turns that are longer the more there are, and between those the
    busiest ones that are shown: with 1,000 streams it costs the server under 1 % of a core."""

    def __init__(self, client: CommandClient, rows: int) -> None:
        self._client = client
        self._rows = rows
        self._states: dict[str, tuple[float, TopState]] = {}
        self._rates: dict[str, tuple[float, float]] = {}
        self._all_due = 0.0

    def look(self) -> None:
        now = time.monotonic()
        if now >= self._all_due:
            infos = api.streams(self._client)
            names = {str(info["config"]["name"]) for info in infos}
            self._states = {name: one for name, one in self._states.items() if name in names}
            self._all_due = now + ALL_AFTER_S_EACH * len(infos)
        else:
            shown = [str(one[0]) for one in self.busiest()[: self._rows]]
            found = (api.stream_or_none(self._client, name) for name in shown)
            infos = [info for info in found if info is not None]
        for info in infos:
            self._update(str(info["config"]["name"]), info["state"])

    def _update(self, name: str, state: dict[str, Any]) -> None:
        now = time.monotonic()
        words = ("last_seq", "messages", "bytes", "consumer_count")
        last_seq, messages, bytes_, consumers = (int(state.get(word, 0)) for word in words)
        new = TopState(last_seq, messages, bytes_, consumers)
        at, before = self._states.get(name, (0.0, new))
        seconds = max(now - at, 1e-9)
        self._rates[name] = (
            (new.last_seq - before.last_seq) / seconds, (new.bytes - before.bytes) / seconds
        )  # fmt: skip
        self._states[name] = (now, new)

    def busiest(self) -> list[tuple[Any, ...]]:
        """Name, messages and bytes per second, messages, bytes, consumers."""
        rows = ((name, *self._rates[name], *one[1:]) for name, (_, one) in self._states.items())
        return sorted(rows, key=lambda row: (-row[1], row[0]))


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


def _wait(client: CommandClient, seconds: float) -> None:
    """PINGs of the server are answered meanwhile."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        client.next(left)


@click.command()
@click.argument("name")
@click.option(
    "--every", "every_ns", type=DURATION, default="1s", show_default=True, help="Time per column.",
)  # fmt: skip
@click.option(
    "--count", type=AT_LEAST_ONE, default=60, show_default=True, help="Number of columns."
)
@click.option(
    "--png", type=click.Path(dir_okay=False, path_type=Path), help="Write a PNG file instead."
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
