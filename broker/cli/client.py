"""The connection of a command to the servers, and its errors as one line of text.

Owns: the --server option and the life of the client connection.
May not touch: the server's internals; the command line is a client like any other."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click
import nats
import nats.errors
import nats.js.errors

from broker.server.process.printable import printable

T = TypeVar("T")

AT_LEAST_ONE = click.IntRange(1)
SECONDS = click.FloatRange(0.0, 10.0**9, min_open=True)

server_option = click.option(
    "-s", "--server", envvar="NATS_URL", default="nats://127.0.0.1:4222", show_default=True,
    show_envvar=True, help="Server URLs, separated by commas.",
)  # fmt: skip


def with_connection(server: str, work: Callable[[Any], Awaitable[T]]) -> T:
    """Connect, do the work, close. An error of the server is printed as one line."""

    async def run() -> T:
        connection = await nats.connect(
            server.split(","), name="jetraft", max_reconnect_attempts=3, connect_timeout=3,
            reconnect_time_wait=0.2, error_cb=_ignore_background, **_credentials(),
        )  # fmt: skip
        try:
            return await work(connection)
        finally:
            await connection.close()

    try:
        return asyncio.run(run())
    except nats.js.errors.APIError as refused:
        reason = (
            f"{refused.description} ({refused.err_code})" if refused.description else "not found"
        )
        raise click.ClickException(printable(reason)) from refused
    except ValueError as wrong:
        raise click.ClickException(printable(str(wrong))) from wrong
    except nats.errors.TimeoutError as problem:
        raise click.ClickException(
            f"no answer before the timeout (server {_shown(server)})"
        ) from problem
    except (nats.errors.Error, OSError) as problem:
        reason = str(problem) or type(problem).__name__
        raise click.ClickException(printable(f"{reason} (server {_shown(server)})")) from problem


def _shown(server: str) -> str:
    """The URLs without passwords."""
    return re.sub(r"//[^@/,]*@", "//***@", server)


def _credentials() -> dict[str, Any]:
    """Options from NATS_USER, NATS_PASSWORD, NATS_TOKEN, NATS_CA, NATS_CERT and NATS_KEY."""
    given: dict[str, Any] = {}
    for option, variable in (
        ("user", "NATS_USER"),
        ("password", "NATS_PASSWORD"),
        ("token", "NATS_TOKEN"),
    ):
        if os.environ.get(variable):
            given[option] = os.environ[variable]
    if os.environ.get("NATS_CA") or os.environ.get("NATS_CERT"):
        context = ssl.create_default_context(cafile=os.environ.get("NATS_CA"))
        if os.environ.get("NATS_CERT"):
            context.load_cert_chain(os.environ["NATS_CERT"], os.environ.get("NATS_KEY"))
        given["tls"] = context
    return given


async def _ignore_background(_: Exception) -> None:
    """Ignore errors of reconnecting; the command itself reports what failed."""
