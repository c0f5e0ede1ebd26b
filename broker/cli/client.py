"""The connection of a command to the servers, and its errors as one line of text.

Owns: the --server option and the life of the client connection.
May not touch: the server's internals; the command line is a client like any other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, TypeVar

import click
import nats
import nats.errors
import nats.js.errors

from broker.cli.connect.failures import CannotConnect, CommandFailed, NoAnswerInTime
from broker.cli.connect.options import connection_options, destination, shown
from broker.cli.connect.sentences import why_not_connected
from broker.cli.connect.tls import client_context

T = TypeVar("T")

SECONDS = click.FloatRange(0.0, 10.0**9, min_open=True)


def server_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a connection. The command gets `server`, the URLs; `connection` finds the
    login by itself."""

    @wraps(command)
    def with_server(**given: Any) -> Any:
        return command(server=",".join(destination().servers), **given)

    return connection_options(with_server)


def with_connection(server: str, work: Callable[[Any], Awaitable[T]]) -> T:
    """Connect, do the work, close. An error of the server is printed as one line."""
    problems: list[Exception] = []  # met while connecting, the newest last

    async def run() -> T:
        async with connection(server, problems) as client:
            return await work(client)

    return with_errors(server, run, problems)


@asynccontextmanager
async def connection(server: str, problems: list[Exception]) -> AsyncIterator[Any]:
    """`problems` gets what happens in the background: the reason of a failure may be there."""

    async def noted(problem: Exception) -> None:
        problems.append(problem)

    client = await nats.connect(
        server.split(","), name="jetraft", max_reconnect_attempts=3, connect_timeout=3,
        reconnect_time_wait=0.2, error_cb=noted, **_credentials(),
    )  # fmt: skip
    try:
        yield client
    finally:
        await client.close()


def with_errors(
    server: str, run: Callable[[], Coroutine[Any, Any, T]], problems: list[Exception]
) -> T:
    """Run it. An error of the server is printed as one line."""
    try:
        return asyncio.run(run())
    except nats.js.errors.APIError as refused:
        raise CommandFailed(_reason(refused)) from refused
    except ValueError as wrong:
        raise CommandFailed(str(wrong)) from wrong
    except nats.errors.TimeoutError as problem:
        raise NoAnswerInTime(f"no answer before the timeout (server {shown(server)})") from problem
    except (nats.errors.Error, nats.js.errors.Error, OSError) as problem:
        told = (
            problems[-1] if isinstance(problem, nats.errors.NoServersError) and problems else None
        )
        reason = _words(told or problem)
        raise CannotConnect(f"{reason} (server {shown(server)})") from problem


def _words(problem: Exception) -> str:
    """Why there is no connection, in a sentence for each reason."""
    text = str(problem) or type(problem).__name__
    if "authorization violation" in text.lower() or "authorization failed" in text.lower():
        return "the server refused the credentials: Authorization Violation"
    return why_not_connected(problem)


def _reason(refused: Any) -> str:
    """The server's words. Some errors of the library have neither a code nor a description."""
    description = getattr(refused, "description", None)
    code = getattr(refused, "err_code", None)
    if isinstance(refused, nats.js.errors.KeyNotFoundError):
        return "no such key"
    if not description:
        return "not found"
    return f"{description} ({code})" if code else str(description)


def _credentials() -> dict[str, Any]:
    """The login as the client library takes it."""
    to = destination()
    given: dict[str, Any] = {
        "user": to.user, "password": to.password, "token": to.token, "user_credentials": to.creds,
        "nkeys_seed": to.nkey,
    }  # fmt: skip
    given = {key: value for key, value in given.items() if value}
    if to.inbox_prefix != "_INBOX":
        given["inbox_prefix"] = to.inbox_prefix.encode()
    if to.ca or to.cert:
        given["tls"] = client_context(to)
    return given
