"""Reload: which settings may change under a running server.

Owns: the comparison of old and new options.
May not touch: the server; it returns the options to continue with.
Spec: nats-server, configuration reload; one change that is not reloadable fails the reload."""

from __future__ import annotations

from msgspec.structs import replace

from broker.config.options import JetStreamOptions, Options

RELOADABLE = frozenset(
    [
        "accounts",
        "authorization",
        "lame_duck",
        "limits",
        "logging",
        "mappings",
        "ping",
        "resolver",
        "server_tags",
        "tls",
    ]
)
FROM_THE_FILE = frozenset(["config_file", "config_digest"])


class NotReloadable(Exception):
    """str() names the setting."""


def merge(current: Options, wanted: Options) -> Options:
    """The options to run with. Raises NotReloadable."""
    if current.port == -1:
        wanted = replace(wanted, port=-1)
    for name in Options.__struct_fields__:
        if name in RELOADABLE or name in FROM_THE_FILE:
            continue
        if name == "jetstream":
            _check_jetstream(current.jetstream, wanted.jetstream)
        elif getattr(current, name) != getattr(wanted, name):
            raise NotReloadable(f"config reload not supported for {name}")
    if (current.tls is None) != (wanted.tls is None):
        raise NotReloadable("config reload not supported for switching TLS on or off")
    if (current.resolver is None) != (wanted.resolver is None):  # its requests are served or not
        raise NotReloadable("config reload not supported for switching the account resolver")
    if current.authorization.callout is None and wanted.authorization.callout is not None:
        # The id of this server has no private key to sign requests with.
        raise NotReloadable("config reload not supported for switching auth_callout on")
    return wanted


def _check_jetstream(current: JetStreamOptions | None, wanted: JetStreamOptions | None) -> None:
    """Accounts and remotes may change. Raises NotReloadable."""
    if current is None or wanted is None:
        same = current is wanted
    else:
        same = replace(wanted, accounts=current.accounts, remotes=current.remotes) == current
    if not same:
        raise NotReloadable("config reload not supported for jetstream")
