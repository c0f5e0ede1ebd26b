"""`jetraft stream cluster`: the replicas of a stream.

Owns: the options and output of these commands.
May not touch: the server's internals.
Spec: JetStream API, STREAM.LEADER.STEPDOWN and STREAM.PEER.REMOVE."""

from __future__ import annotations

import time

import click

from broker.cli.connect import api
from broker.cli.connect.blocking import connected
from broker.cli.connect.client_shape import CommandClient
from broker.cli.connect.failures import CommandFailed
from broker.cli.connect.options import Destination, connects
from broker.cli.lazy import CommandGroup
from broker.cli.output.questions import confirm, yes_option
from broker.cli.output.tables import show, show_json

POLL_EVERY_S = 0.1


@click.group(cls=CommandGroup)
def cluster() -> None:
    """Move the leader of a stream, or one of its replicas."""


@cluster.command("step-down")
@click.argument("name")
@click.option("--to", "preferred", default="", help="The server that should lead.")
@connects
def step_down(*, name: str, preferred: str, to: Destination, as_json: bool) -> None:
    """Let another replica lead, and wait until it does."""
    with connected(to) as client:
        before = _leader(client, name)
        body = {"placement": {"preferred": preferred}} if preferred else None
        api.call(client, f"STREAM.LEADER.STEPDOWN.{api.name(name)}", body)
        deadline = time.monotonic() + to.timeout_s
        while (now := _leader(client, name)) in ("", before):
            if time.monotonic() > deadline:
                raise CommandFailed(f"{before} still leads {name}")
            time.sleep(POLL_EVERY_S)
    show_json({"stream": name, "leader": now, "before": before}) if as_json else show(
        f"{now} leads {name}; before it was {before}"
    )


@cluster.command("peer-remove")
@click.argument("name")
@click.argument("peer")
@yes_option
@connects
def peer_remove(*, name: str, peer: str, yes: bool, to: Destination, as_json: bool) -> None:
    """Move the replica of a stream from this server to another one."""
    confirm(f"Remove {name} from {peer}?", yes=yes)
    with connected(to) as client:
        done = api.call(client, f"STREAM.PEER.REMOVE.{api.name(name)}", {"peer": peer})
    show_json(done) if as_json else show(f"{peer} loses its replica of {name}")


def _leader(client: CommandClient, name: str) -> str:
    info = api.stream_info(client, name)
    if not info.get("cluster") or not info["cluster"].get("replicas"):
        raise CommandFailed(f"{name} has one replica: nobody else can lead it")
    return str(info["cluster"].get("leader") or "")
