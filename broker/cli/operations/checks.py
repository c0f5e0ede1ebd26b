"""`jetraft server check`: one line and an exit code, for Nagios and the like.

Owns: the checks and their thresholds.
May not touch: the server's internals.
Exit codes are those of such systems: 0 fine, 1 warning, 2 critical, 3 unknown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from broker.cli.connect import api
from broker.cli.connect.blocking import connected
from broker.cli.connect.client_shape import CommandClient
from broker.cli.connect.failures import CommandFailed
from broker.cli.connect.options import AT_LEAST_ONE, Destination, connects
from broker.cli.lazy import CommandGroup
from broker.cli.output.tables import show, show_json
from broker.cli.output.units import DURATION, NS, latency

LEVELS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
Finding = tuple[int, str]  # level and what was found
PERCENT = click.IntRange(1, 100)


@click.group(cls=CommandGroup)
def check() -> None:
    """Checks with the exit codes of a monitoring system: 0 fine, 1 warning, 2 critical, 3
    unknown."""


@check.command("connection")
@click.option("--warn", "warn_ns", type=DURATION, default="500ms", show_default=True,
              help="Warn if the round trip takes longer.")  # fmt: skip
@click.option("--critical", "critical_ns", type=DURATION, default="1s", show_default=True,
              help="Critical if the round trip takes longer.")  # fmt: skip
@connects
def check_connection(*, warn_ns: int, critical_ns: int, to: Destination, as_json: bool) -> None:
    """Whether the server can be reached, and how fast it answers."""

    def look(client: CommandClient) -> list[Finding]:
        seconds = client.flush()
        level = _over(seconds, warn_ns / NS, critical_ns / NS)
        return [(level, f"round trip {latency(seconds)}")]

    _run("connection", to, look, as_json=as_json, lost=2)


@check.command("jetstream")
@click.option("--warn", type=PERCENT, default=75, show_default=True, help="Percent of a limit.")
@click.option("--critical", type=PERCENT, default=90, show_default=True, help="Percent of a limit.")
@connects
def check_jetstream(*, warn: int, critical: int, to: Destination, as_json: bool) -> None:
    """How much of its limits the account uses, and whether every stream has a leader."""

    def look(client: CommandClient) -> list[Finding]:
        account = api.call(client, "INFO")
        limits = account.get("limits") or {}
        found = []
        for used, limit, what in (
            ("storage", "max_storage", "files"), ("memory", "max_memory", "memory"),
            ("streams", "max_streams", "streams"), ("consumers", "max_consumers", "consumers"),
        ):  # fmt: skip
            most = int(limits.get(limit, -1))
            if most > 0:
                percent = 100 * int(account.get(used, 0)) / most
                found.append((_over(percent, warn, critical), f"{what} {percent:.0f} %"))
        headless = [
            str(info["config"]["name"])
            for info in api.streams(client)
            if info.get("cluster") and not info["cluster"].get("leader")
        ]
        if headless:
            found.append((2, f"no leader: {', '.join(headless)}"))
        return found or [(0, f"{account.get('streams', 0)} streams, no limits")]

    _run("jetstream", to, look, as_json=as_json)


@check.command("stream")
@click.argument("name")
@click.option("--replicas", type=AT_LEAST_ONE, help="Critical with fewer current replicas.")
@click.option(
    "--lag",
    "lag_max",
    type=click.IntRange(0),
    help="Critical if a mirror or source is further behind (messages).",
)
@click.option("--min-messages", type=click.IntRange(0), help="Critical with fewer messages.")
@click.option("--max-messages", type=click.IntRange(0), help="Critical with more messages.")
@connects
def check_stream(
    *, name: str, replicas: int | None, lag_max: int | None, min_messages: int | None,
    max_messages: int | None, to: Destination, as_json: bool,
) -> None:  # fmt: skip
    """A stream: its replicas, how far copies are behind, how many messages it has."""

    def look(client: CommandClient) -> list[Finding]:
        info = api.stream_info(client, name)
        messages = int(info["state"].get("messages", 0))
        bad = (min_messages is not None and messages < min_messages) or (
            max_messages is not None and messages > max_messages
        )
        found: list[Finding] = [(2 if bad else 0, f"{messages:,} messages")]
        if replicas is not None:
            cluster = info.get("cluster") or {}
            peers = cluster.get("replicas") or []
            current = 1 + sum(bool(peer.get("current")) for peer in peers)
            good = current >= replicas and (not cluster or cluster.get("leader"))
            found.append((0 if good else 2, f"{current} of {replicas} replicas current"))
        for origin in [info.get("mirror"), *(info.get("sources") or [])]:
            if origin and lag_max is not None:
                lag = int(origin.get("lag", 0))
                found.append((2 if lag > lag_max else 0, f"{lag} behind {origin.get('name')}"))
        return found

    _run(f"stream {name}", to, look, as_json=as_json)


@check.command("consumer")
@click.argument("stream_name", metavar="STREAM")
@click.argument("name")
@click.option("--pending", type=click.IntRange(0), help="Critical with more messages to deliver.")
@click.option(
    "--unacked", type=click.IntRange(0), help="Critical with more messages that are not acked."
)
@click.option(
    "--redelivered", type=click.IntRange(0), help="Critical with more redelivered messages."
)
@connects
def check_consumer(
    *, stream_name: str, name: str, pending: int | None, unacked: int | None,
    redelivered: int | None, to: Destination, as_json: bool,
) -> None:  # fmt: skip
    """A consumer: what it has to deliver, what is not acked."""

    def look(client: CommandClient) -> list[Finding]:
        info = api.consumer_info(client, stream_name, name)
        found = []
        for field, most, what in (
            ("num_pending", pending, "to deliver"), ("num_ack_pending", unacked, "unacked"),
            ("num_redelivered", redelivered, "redelivered"),
        ):  # fmt: skip
            count = int(info.get(field, 0))
            found.append((2 if most is not None and count > most else 0, f"{count:,} {what}"))
        return found

    _run(f"consumer {stream_name} > {name}", to, look, as_json=as_json)


def _over(value: float, warn: float, critical: float) -> int:
    return 2 if value >= critical else 1 if value >= warn else 0


def _run(
    what: str, to: Destination, look: Callable[[CommandClient], list[Finding]], *,
    as_json: bool, lost: int = 3,
) -> None:  # fmt: skip
    """`lost`: the level if the server cannot be reached."""
    try:
        with connected(to) as client:
            found = look(client)
    except CommandFailed as failed:
        found = [(2 if failed.exit_code == 1 else lost, failed.message)]
    level = max(level for level, _ in found)
    if as_json:
        result: dict[str, Any] = {"check": what, "status": LEVELS[level]}
        show_json(result | {"findings": [{"status": LEVELS[one], "text": t} for one, t in found]})
    else:
        show(f"{LEVELS[level]} {what}: {', '.join(text for _, text in found)}")
    click.get_current_context().exit(level)
