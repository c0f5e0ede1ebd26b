"""Groups of commands: how they are listed, found and ended. LazyGroup imports the module of a
command when it is used.

Owns: when a command is imported, the shape of help, the exit codes of Ctrl-C and a closed pipe.
May not touch: what a command does."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

import click

INTERRUPTED, BROKEN_PIPE = 130, 141  # exit codes, as shells give them
WIDTH_LEAST = 50  # click writes such lines even if the terminal has fewer columns


class FittingHelp(click.HelpFormatter):
    """Help that fits a narrow terminal. There, a long name gets a line of its own."""

    def __init__(
        self, indent_increment: int = 2, width: int | None = None, max_width: int | None = None
    ) -> None:
        super().__init__(indent_increment, width, max_width)
        if width is None and self.width == WIDTH_LEAST:
            import shutil

            self.width = max(min(shutil.get_terminal_size().columns - 2, WIDTH_LEAST), 20)

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        narrow = self.width < WIDTH_LEAST
        super().write_dl(rows, self.width // 4 if narrow else col_max, col_spacing)


click.Context.formatter_class = FittingHelp


class CommandGroup(click.Group):
    """Lists its commands with whole sentences, and knows the nearest one to a mistyped word."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """`help stream add` is `stream add --help`."""
        word = args[0]
        if ctx.resilient_parsing or word.startswith("-") or self.get_command(ctx, word):
            return super().resolve_command(ctx, args)
        if word == "help":
            return self.resolve_command(ctx, [*args[1:], "--help"])
        from difflib import get_close_matches

        near = get_close_matches(word, self.list_commands(ctx), n=1)
        hint = "".join(f" Did you mean '{one}'?" for one in near)
        return ctx.fail(f"No such command '{word}'.{hint}")

    def listed(self) -> dict[str, str]:
        """Names and what they do."""
        return {
            name: command.get_short_help_str(limit=150) for name, command in self.commands.items()
        }

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*self.listed().items()])


class LazyGroup(CommandGroup):
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
        except (KeyboardInterrupt, click.Abort):  # Abort: at a question
            click.echo("", err=True)
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            # What is still buffered must not fail again when Python closes it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(BROKEN_PIPE)
        return result

    def listed(self) -> dict[str, str]:
        return super().listed() | {name: text for name, (_, text) in self.lazy.items()}
