"""Groups of commands whose modules are imported when a command is used.

Owns: when a command is imported.
May not touch: what it does."""

from __future__ import annotations

import os
import sys

import click

INTERRUPTED, BROKEN_PIPE = 130, 141  # exit codes, as shells give them


class LazyGroup(click.Group):
    """`lazy` maps a name to the module that has it and its help. The command is the attribute of
    that name, with _ for -, or with the name of the group before it."""

    def __init__(
        self, *args: object, lazy: dict[str, tuple[str, str]],
        aliases: dict[str, str] | None = None, **kwargs: object,
    ) -> None:  # fmt: skip
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.lazy = lazy
        self.aliases = aliases or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.lazy, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        from importlib import import_module

        cmd_name = self.aliases.get(cmd_name, cmd_name)
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module = import_module(self.lazy[cmd_name][0])
        word = cmd_name.replace("-", "_")
        command: click.Command = getattr(module, word, None) or getattr(
            module, f"{self.name}_{word}"
        )
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Ctrl-C and a reader that has gone end the whole command quietly."""
        if ctx.parent is not None:
            return super().invoke(ctx)
        try:
            result: object = super().invoke(ctx)
            sys.stdout.flush()
        except KeyboardInterrupt:
            click.echo("", err=True)
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            # What is still buffered must not fail again when Python closes it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(BROKEN_PIPE)
        return result

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = {
            name: command.get_short_help_str(limit=150) for name, command in self.commands.items()
        }
        lazy = {name: text for name, (_, text) in self.lazy.items()}
        with formatter.section("Commands"):
            formatter.write_dl([*(own | lazy).items()])
