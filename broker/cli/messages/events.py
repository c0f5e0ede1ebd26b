"""`jetraft events`: what servers tell about themselves.

Owns: its options, and one line per event.
May not touch: the server's internals.
Spec: $JS.EVENT.ADVISORY.>, $JS.EVENT.METRIC.>, $SYS.ACCOUNT.>, $SYS.SERVER.>."""

from __future__ import annotations

import json
from typing import Any

import click

from broker.cli.connect.blocking import connected
from broker.cli.connect.client_shape import ReceivedMessage
from broker.cli.connect.options import AT_LEAST_ONE, Destination, connects
from broker.cli.output.tables import show, show_json_line
from broker.cli.output.units import DURATION, NS

JETSTREAM = ("$JS.EVENT.ADVISORY.>", "$JS.EVENT.METRIC.>")
SYSTEM = (
    "$SYS.ACCOUNT.*.CONNECT", "$SYS.ACCOUNT.*.DISCONNECT", "$SYS.SERVER.*.CLIENT.AUTH.ERR",
    "$SYS.SERVER.*.SHUTDOWN", "$SYS.SERVER.*.LAMEDUCK", "$JS.EVENT.ADVISORY.>",
)  # fmt: skip
_SHOWN = (
    "action", "stream", "consumer", "stream_seq", "consumer_seq", "deliveries", "reason", "leader",
    "queue", "bucket", "domain", "subject",
)  # fmt: skip


@click.command()
@click.option(
    "--system", is_flag=True, help="Also events of the system account; needs a user of it."
)
@click.option("--count", type=AT_LEAST_ONE, help="Stop after this many events.")
@click.option("--wait", "wait_ns", type=DURATION, help="Stop when no event arrived for this long.")
@connects
def events(
    *, system: bool, count: int | None, wait_ns: int | None, to: Destination, as_json: bool
) -> None:
    """Print events as they happen: leaders, lost quorums, deliveries given up, streams and
    consumers that come and go; with --system also connections. Ctrl-C ends it."""
    with connected(to, patience_s=60.0) as client:
        for subject in SYSTEM if system else JETSTREAM:
            client.subscribe(subject)
        client.flush()
        click.echo("waiting for events", err=True)
        for seen, message in enumerate(client.messages(wait_ns and wait_ns / NS), 1):
            event = _parsed(message)
            if as_json:
                show_json_line({"subject": message.subject, "event": event})
            else:
                show(_line(message.subject, event))
            if seen == count:
                return


def _parsed(message: ReceivedMessage) -> dict[str, Any]:
    try:
        found = json.loads(message.data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _line(subject: str, event: dict[str, Any]) -> str:
    kind = str(event.get("type", "")).rpartition(".")[2] or subject
    when = str(event.get("timestamp", ""))[:23].replace("T", " ")
    parts = [f"{name} {event[name]}" for name in _SHOWN if event.get(name) not in (None, "")]
    client, server = event.get("client") or {}, event.get("server") or {}
    if isinstance(client, dict) and (
        client.get("user") or client.get("name") or client.get("host")
    ):
        who = client.get("name") or client.get("user") or client.get("host")
        parts.append(f"client {who}")
    if isinstance(server, dict) and server.get("name"):
        parts.append(f"server {server['name']}")
    return f"{when or '-'}  {kind}  {', '.join(parts)}".rstrip()
