"""The jetraft command and its subcommands.

Owns: the command tree and its help.
May not touch: what the commands do. Each lives in a module of its own that is imported when the
command is used, so that `serve` and `--help` start quickly.
Spec: `serve` takes nats-server's own flags, so they are not parsed here."""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

import click

from broker.cli.lazy import LazyGroup

COMMANDS = {
    "serve": ("broker.cli.servers", "Run one server (takes nats-server's flags and config file)."),
    "up": ("broker.cli.servers", "Start three nodes on this machine and print their addresses."),
    "down": ("broker.cli.servers", "Stop the nodes that `up --detach` started."),
    "cluster": ("broker.cli.cluster", "Show, add, drain and remove the nodes of a cluster."),
    "dr": (
        "broker.cli.disaster.dr",
        "Keep a copy of a stream in another cluster; fail over to it, and back.",
    ),
    "stream": (
        "broker.cli.streams.stream",
        "Create, change, list, show, back up and delete streams and their messages.",
    ),
    "consumer": (
        "broker.cli.consumers.consumer",
        "Create, change, list, show and delete consumers; fetch messages.",
    ),
    "kv": ("broker.cli.buckets.kv", "Key-value buckets: put, get, watch."),
    "object": (
        "broker.cli.buckets.object_store",
        "Object stores: put and get files of any size.",
    ),
    "scan": ("broker.cli.scan", "Read a stream as a table; show bulk reads and their lag."),
    "pub": (
        "broker.cli.messages.pub",
        "Publish messages, waiting for the stream's acks if there is one.",
    ),
    "sub": ("broker.cli.messages.sub", "Print messages as they are published."),
    "request": ("broker.cli.messages.request", "Send a request and print the answer."),
    "reply": ("broker.cli.messages.request", "Answer requests."),
    "events": ("broker.cli.messages.events", "Print events of the servers as they happen."),
    "rtt": ("broker.cli.messages.probes", "Measure the round trip to servers."),
    "info": ("broker.cli.messages.probes", "Show the server and the account of this connection."),
    "context": ("broker.cli.context", "Saved servers and logins, shared with the `nats` tool."),
    "server": ("broker.cli.operations.server", "Show servers and their health; checks."),
    "account": ("broker.cli.operations.account", "Show the limits of accounts and their use."),
    "top": ("broker.cli.operations.top", "The busiest streams, live."),
    "graph": ("broker.cli.operations.top", "Draw the message rate of a stream."),
    "migrate": (
        "broker.cli.operations.migrate",
        "Copy all streams with their consumers to other servers.",
    ),
    "bench": ("broker.cli.measure.bench", "Measure a server, alone or against nats-server."),
    "config": ("broker.cli.config", "Check a configuration file before a server reads it."),
    "completion": ("broker.cli.completion", "Completion of commands for bash, zsh or fish."),
    "chaos": (
        "broker.cli.chaos",
        "Kill and pause nodes under load, and check that no acknowledged message is lost.",
    ),
}
ALIASES = {
    "streams": "stream", "consumers": "consumer", "con": "consumer", "obj": "object",
    "req": "request", "publish": "pub", "subscribe": "sub", "ctx": "context",
}  # fmt: skip


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    aliases=ALIASES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="\b\nStart here:\n  jetraft up --detach\n"
    "  jetraft stream add ORDERS --subjects 'orders.*' --replicas 3",
)
@click.version_option(package_name="jetraft")
def cli() -> None:
    """JetRaft: a clustered broker for NATS clients. Every stream is a Raft group; an ack means
    the message is on disk on a majority of its nodes."""


def main() -> None:
    """Entry point. `serve` bypasses the command tree."""
    if sys.argv[1:2] == ["serve"]:
        from broker.cli.serve import serve

        sys.exit(serve(sys.argv[2:]))
    signal.signal(signal.SIGTERM, _end)
    cli()


def _end(*_: object) -> NoReturn:
    """As Ctrl-C: commands remove what is half-written."""
    raise SystemExit(128 + signal.SIGTERM)
