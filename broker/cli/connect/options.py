"""The options of every command that connects, and what follows from them, the environment and the
saved context.

Owns: their names, and which one wins: option, then variable, then context, then default.
May not touch: sockets.
A selected context is ignored where --server or NATS_URL names another server: its password is for
its own servers. `--context NAME` with `--server` is explicit, and uses both."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Final

import click

from broker.cli.connect import contexts
from broker.cli.connect.failures import CannotConnect, CommandFailed
from broker.cli.output.tables import json_option
from broker.cli.output.units import DURATION, NS

DEFAULT_SERVER: Final = "nats://127.0.0.1:4222"
SCHEMES: Final = ("nats", "tls", "ws", "wss")
_META: Final = "jetraft.connection"
_PREFIX: Final = "connection_"  # commands have parameters of the same names
AT_LEAST_ONE = click.IntRange(1)

_OPTIONS: Final = (  # option, variable, field of a context, help
    ("--user", "NATS_USER", "user", "User name."),
    ("--password", "NATS_PASSWORD", "password", "Password."),
    ("--token", "NATS_TOKEN", "token", "Token."),
    ("--creds", "NATS_CREDS", "creds", "Credentials file (JWT and seed)."),
    ("--nkey", "NATS_NKEY", "nkey", "File with the seed of an nkey."),
    ("--tlsca", "NATS_CA", "ca", "CA certificate of the server."),
    ("--tlscert", "NATS_CERT", "cert", "Certificate of this client."),
    ("--tlskey", "NATS_KEY", "key", "Its private key."),
    ("--inbox-prefix", "NATS_INBOX_PREFIX", "inbox_prefix", "First words of inboxes."),
    ("--js-domain", "NATS_JS_DOMAIN", "jetstream_domain", "JetStream domain."),
)


@dataclass(frozen=True, slots=True)
class Destination:
    """Where to connect, and as whom."""

    servers: tuple[str, ...] = (DEFAULT_SERVER,)
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    creds: str = ""
    nkey: str = ""
    user_jwt: str = field(default="", repr=False)
    user_seed: str = field(default="", repr=False)
    ca: str = ""
    cert: str = ""
    key: str = ""
    tls_first: bool = False
    inbox_prefix: str = "_INBOX"
    api_prefix: str = "$JS.API"
    timeout_s: float = 5.0


def connects(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command gets `to`, a Destination, and `as_json`."""

    @wraps(command)
    def with_destination(**given: Any) -> Any:
        return command(to=destination(), **given)

    return connection_options(json_option(with_destination))


def connection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options alone; `destination()` says what they mean."""
    for flag, variable, name, text in reversed(_OPTIONS):
        command = click.option(
            flag, _PREFIX + name, envvar=variable, show_envvar=True, help=text, expose_value=False,
            callback=_remember,
        )(command)  # fmt: skip
    command = click.option(
        "--timeout", _PREFIX + "timeout", type=DURATION, default="5s", show_default=True,
        help="Wait this long for an answer.", expose_value=False, callback=_remember,
    )(command)  # fmt: skip
    command = click.option(
        "--context", _PREFIX + "context", envvar="NATS_CONTEXT", show_envvar=True,
        help="A saved context, instead of the selected one.", expose_value=False,
        callback=_remember,
    )(command)  # fmt: skip
    return click.option(
        "-s", "--server", _PREFIX + "server", envvar="NATS_URL", show_envvar=True,
        expose_value=False, callback=_remember, metavar="URLS",
        help=f"Server URLs, separated by commas.  [default: {DEFAULT_SERVER}]",
    )(command)  # fmt: skip


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None and value != "" and parameter.name is not None:
        context.meta.setdefault(_META, {})[parameter.name.removeprefix(_PREFIX)] = value


def destination() -> Destination:
    """Of the command that runs now."""
    current = click.get_current_context(silent=True)
    if current is None or _META not in current.meta:
        return Destination()  # a command that names its servers itself
    given: dict[str, Any] = dict(current.meta[_META])
    name = given.pop("context", "")
    if not name and "server" not in given:
        name = contexts.selected()
    return _merged(given, contexts.load(name) if name else {})


def of_context(name: str, *, timeout_s: float = 5.0) -> Destination:
    """As a saved context says, without options."""
    return _merged({"timeout": round(timeout_s * NS)}, contexts.load(name))


def at(servers: str, like: Destination) -> Destination:
    """Other servers, with the same login."""
    from dataclasses import replace

    return replace(like, servers=_urls(servers))


def _merged(given: dict[str, Any], saved: contexts.Context) -> Destination:
    if saved.get("socks_proxy"):
        raise CommandFailed("the context needs a SOCKS proxy, which this command does not support")
    if saved.get("nsc"):
        raise CommandFailed("the context refers to nsc; save it with --creds instead")

    def value(name: str) -> str:
        return str(given.get(name) or saved.get(name) or "")

    files = {
        name: os.path.expanduser(value(name)) for name in ("creds", "nkey", "ca", "cert", "key")
    }
    for name, path in files.items():
        if path and not os.path.isfile(path):
            raise CommandFailed(f"{path}: no such file ({name})")
    domain = value("jetstream_domain")
    prefix = str(saved.get("jetstream_api_prefix") or "$JS.API").rstrip(".")
    return Destination(
        servers=_urls(str(given.get("server") or saved.get("url") or DEFAULT_SERVER)),
        user=value("user"), password=value("password"), token=value("token"),
        user_jwt=value("user_jwt"), user_seed=value("user_seed"),
        tls_first=bool(saved.get("tls_first")),
        inbox_prefix=value("inbox_prefix") or "_INBOX",
        api_prefix=f"$JS.{domain}.API" if domain else prefix,
        timeout_s=given.get("timeout", 5 * NS) / NS,
        **files,
    )  # fmt: skip


def _urls(text: str) -> tuple[str, ...]:
    urls = tuple(filter(None, (part.strip() for part in text.split(","))))
    for url in urls:
        if "://" in url and url.partition("://")[0] not in SCHEMES:
            raise CannotConnect(f"{shown(url)}: the scheme must be one of {', '.join(SCHEMES)}")
    return urls or (DEFAULT_SERVER,)


def shown(servers: str) -> str:
    """The URLs without passwords."""
    import re

    return re.sub(r"//[^@/,]*@", "//***@", servers)
