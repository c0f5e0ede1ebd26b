"""`jetraft completion`: the script with which a shell completes our commands.

Owns: the choice of the shell.
May not touch: files; the script goes to standard output."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(*, shell: str) -> None:
    """Print the completion script, for instance for `source <(jetraft completion bash)`."""
    from broker.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None, "click knows these shells"
    click.echo(kind(cli, {}, "jetraft", "_JETRAFT_COMPLETE").source())
