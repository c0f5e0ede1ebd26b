"""The connection of a command to the servers, and its errors as one line of text.

Owns: the --server option and the life of the client connection.
May not touch: the server's internals; the command line is a client like any other."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import click
import nats
import nats.errors
import nats.js.errors

from broker.server.process.printable import printable

T = TypeVar("T")

AT_LEAST_ONE = click.IntRange(1)
SECONDS = click.FloatRange(0.0, 10.0**9, min_open=True)

SCHEMES = ("nats", "tls", "ws", "wss")
_LOGIN = (  # option, variable, argument of the client library, help
    ("--user", "NATS_USER", "user", "User name."),
    ("--password", "NATS_PASSWORD", "password", "Password."),
    ("--token", "NATS_TOKEN", "token", "Token."),
    ("--creds", "NATS_CREDS", "user_credentials", "Credentials file (JWT and seed)."),
    ("--nkey", "NATS_NKEY", "nkeys_seed", "File with the seed of an nkey."),
    ("--tlsca", "NATS_CA", "tls_ca", "CA certificate of the server."),
    ("--tlscert", "NATS_CERT", "tls_cert", "Certificate of this client."),
    ("--tlskey", "NATS_KEY", "tls_key", "Its private key."),
)


def _remember(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value and parameter.name is not None:
        context.ensure_object(dict)[parameter.name] = value


def server_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--server, which the command gets, and the options of the login, which `with_connection`
    finds by itself."""
    for flag, variable, name, text in reversed(_LOGIN):
        command = click.option(
            flag, name, envvar=variable, show_envvar=True, help=text, expose_value=False,
            callback=_remember,
        )(command)  # fmt: skip
    return click.option(
        "-s", "--server", envvar="NATS_URL", default="nats://127.0.0.1:4222", show_default=True,
        show_envvar=True, help="Server URLs, separated by commas.",
    )(command)  # fmt: skip


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
    for url in server.split(","):
        if "://" in url and url.partition("://")[0] not in SCHEMES:
            raise click.ClickException(f"{_shown(url)}: the scheme must be one of {SCHEMES}")

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
        raise click.ClickException(printable(_reason(refused))) from refused
    except ValueError as wrong:
        raise click.ClickException(printable(str(wrong))) from wrong
    except nats.errors.TimeoutError as problem:
        raise click.ClickException(
            f"no answer before the timeout (server {_shown(server)})"
        ) from problem
    except (nats.errors.Error, nats.js.errors.Error, OSError) as problem:
        told = (
            problems[-1] if isinstance(problem, nats.errors.NoServersError) and problems else None
        )
        reason = _words(told or problem)
        raise click.ClickException(printable(f"{reason} (server {_shown(server)})")) from problem


def _words(problem: Exception) -> str:
    """Why there is no connection, in a sentence for each reason."""
    if isinstance(problem, socket.gaierror):
        return "the name of the server is unknown"
    if isinstance(problem, ConnectionRefusedError):
        return "nobody listens there: connection refused"
    if isinstance(problem, ssl.SSLError):
        return f"TLS failed: {problem.reason or problem}"
    if isinstance(problem, TimeoutError):
        return "the server does not answer"
    text = str(problem) or type(problem).__name__
    if "authorization violation" in text.lower() or "authorization failed" in text.lower():
        return "the server refused the credentials: Authorization Violation"
    return text


def _reason(refused: Any) -> str:
    """The server's words. Some errors of the library have neither a code nor a description."""
    description = getattr(refused, "description", None)
    code = getattr(refused, "err_code", None)
    if isinstance(refused, nats.js.errors.KeyNotFoundError):
        return "no such key"
    if not description:
        return "not found"
    return f"{description} ({code})" if code else str(description)


def _shown(server: str) -> str:
    """The URLs without passwords."""
    return re.sub(r"//[^@/,]*@", "//***@", server)


def _credentials() -> dict[str, Any]:
    """The login as the client library takes it. Raises ClickException for files that cannot be
    read."""
    context = click.get_current_context(silent=True)
    given: dict[str, Any] = dict(context.obj or {}) if context is not None else {}
    ca, cert, key = (given.pop(name, None) for name in ("tls_ca", "tls_cert", "tls_key"))
    for name in ("user_credentials", "nkeys_seed"):
        if name in given and not os.path.isfile(given[name]):
            raise click.ClickException(f"{given[name]}: no such file")
    if ca or cert:
        try:
            tls = ssl.create_default_context(cafile=ca)
            if cert:
                tls.load_cert_chain(cert, key)
        except (OSError, ssl.SSLError) as error:
            raise click.ClickException(f"cannot use the certificates: {error}") from error
        given["tls"] = tls
    return given
