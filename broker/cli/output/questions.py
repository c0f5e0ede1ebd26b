"""Questions, which are asked at a terminal only. Every answer is also an option.

Owns: the wording of a question and of the refusal where nobody can be asked.
May not touch: servers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

yes_option: Callable[..., Any] = click.option(
    "-f", "--yes", "--force", is_flag=True, help="Do not ask for confirmation."
)


def can_ask() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def ask(given: str | None, question: str, *, option: str, default: str | None = None) -> str:
    """What was given, or the answer. Where nobody can be asked: the default, or a usage error."""
    if given is not None:
        return given
    if can_ask():
        answer: str = click.prompt(question, default=default)
        return answer.strip()
    if default is None:
        kind = "option" if option.startswith("-") else "argument"
        raise click.UsageError(f"Missing {kind} '{option}'.")
    return default


def confirm(question: str, *, yes: bool) -> None:
    """Ends the command if a person says no. Scripts are not asked."""
    if not yes and can_ask() and not click.confirm(question):
        raise click.ClickException("nothing was done")
