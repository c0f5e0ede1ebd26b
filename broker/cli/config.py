"""`jetraft config check`: what a configuration file means, before a server reads it.

Owns: the output of the check.
May not touch: sockets; nothing is opened or started."""

from __future__ import annotations

from pathlib import Path

import click

from broker.cli.lazy import CommandGroup
from broker.cli.output.tables import show


@click.group(cls=CommandGroup)
def config() -> None:
    """Configuration files."""


@config.command("check")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def config_check(*, file: Path) -> None:
    """Check a configuration file of nats-server or JetRaft. Every fault has its line; exit code 1
    if there is one."""
    from broker.config.exposure import exposures
    from broker.config.load import BadSettings, load, parse_flags

    try:
        loaded = load(parse_flags(["-c", str(file)]))
    except BadSettings as error:
        raise click.ClickException(str(error)) from error
    for line in (*loaded.warnings, *exposures(loaded.options)):
        show(f"warning: {line}")
    show(f"{file}: fine")
