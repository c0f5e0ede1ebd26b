"""Why a command failed, as exit codes.

Owns: the exit codes that docs/cli.md lists.
May not touch: how a failure is found."""

from __future__ import annotations

import click

from broker.server.process.printable import printable

REFUSED = 1  # the server said no, or what was asked for is not there
USAGE = 2  # click's own
NOT_CONNECTED = 3
NO_ANSWER = 4


class CommandFailed(click.ClickException, Exception):
    """One line for the user. Texts of servers cannot act on the terminal."""

    exit_code = REFUSED

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class CannotConnect(CommandFailed):
    exit_code = NOT_CONNECTED


class NoAnswerInTime(CommandFailed):
    exit_code = NO_ANSWER


class ApiRefused(CommandFailed):
    """The error of a JetStream answer."""

    def __init__(self, error: dict[str, object]) -> None:
        self.code = int(str(error.get("code", 0)))
        self.err_code = int(str(error.get("err_code", 0)))
        text = str(error.get("description") or "refused")
        super().__init__(f"{text} ({self.err_code})" if self.err_code else text)
