"""The jetraft command and its subcommands.

Owns: the command tree and its help.
May not touch: what the commands do. Each lives in a module of its own that is imported when the
command is used, so that `serve` and `--help` start quickly.
Spec: `serve` takes nats-server's own flags, so they are not parsed here."""

from __future__ import annotations

import sys

import click


class LazyGroup(click.Group):
    """Imports a command's module only when it is used. `lazy` maps name -> (module, help)."""

    def __init__(self, *args: object, lazy: dict[str, tuple[str, str]], **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.lazy]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        from importlib import import_module

        if cmd_name not in self.lazy:
            return None
        module = import_module(self.lazy[cmd_name][0])
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.lazy.items()])


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
        "broker.cli.jetstream",
        "Create, list, show, purge and delete streams.",
    ),
    "consumer": (
        "broker.cli.jetstream",
        "Create, list, show and delete consumers; fetch messages.",
    ),
    "kv": ("broker.cli.kv", "Key-value buckets: put, get, watch."),
    "object": ("broker.cli.object_store", "Object stores: put and get files of any size."),
    "scan": ("broker.cli.jetstream", "Show bulk reads and the lag of streaming queries."),
    "pub": (
        "broker.cli.messages",
        "Publish messages, waiting for the stream's ack if there is one.",
    ),
    "sub": ("broker.cli.messages", "Print messages as they are published."),
    "bench": ("broker.cli.bench", "Measure publishing, alone or against nats-server."),
    "config": ("broker.cli.config", "Check a configuration file before a server reads it."),
    "completion": ("broker.cli.completion", "Completion of commands for bash, zsh or fish."),
    "chaos": (
        "broker.cli.chaos",
        "Kill and pause nodes under load, and check that no acknowledged message is lost.",
    ),
}


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start here:  jetraft up   then, in another terminal:  jetraft stream add ORDERS "
    "--subjects 'orders.*' --replicas 3",
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
    cli()
