"""Configuration reload: which settings may change while the server runs.

Owns: the comparison of old and new options.
May not touch: the server; it returns the options to continue with.
Spec: nats-server, configuration reload; one change that is not reloadable fails the reload."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from broker.config.options import LeafNodeOptions, Options

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
        "server_metadata",
        "server_tags",
        "tls",
    ]
)
FROM_THE_FILE = frozenset(["config_file", "config_digest"])


# Configuration blocks in which only these fields may change.
_PARTS = {
    "jetstream": frozenset(["accounts", "remotes", "limits", "max_memory_store", "max_file_store"]),
    "cluster": frozenset(["routes", "permissions", "compression"]),
    "leafnodes": frozenset(
        [
            "remotes",
            "authorization",
            "tls",
            "reconnect_ns",
            "min_version",
            "no_advertise",
            "compression",
            "dial_timeout_ns",
            "isolated",
            "write_deadline_ns",
        ]
    ),
    "websocket": frozenset(
        [
            "same_origin",
            "allowed_origins",
            "compression",
            "handshake_timeout_ns",
            "user_cookie",
            "pass_cookie",
            "token_cookie",
            "jwt_cookie",
            "no_auth_user",
            "user",
            "password",
            "token",
            "auth_timeout_ns",
            "headers",
            "ping_interval_ns",
            "tls",
        ]
    ),
}
Block = Any  # a msgspec.Struct of the options


class NotReloadable(Exception):
    """str() names the setting."""


def merge(current: Options, wanted: Options) -> Options:
    """The options to run with. Raises NotReloadable."""
    if current.port == -1:
        wanted = replace(wanted, port=-1)
    for name in Options.__struct_fields__:
        if name in RELOADABLE or name in FROM_THE_FILE:
            continue
        old, new = getattr(current, name), getattr(wanted, name)
        if not _may_become(old, new, _PARTS.get(name, frozenset())):
            raise NotReloadable(f"config reload not supported for {name}")
    if (current.tls is None) != (wanted.tls is None):
        raise NotReloadable("config reload not supported for switching TLS on or off")
    if (current.resolver is None) != (wanted.resolver is None):  # its requests are served or not
        raise NotReloadable("config reload not supported for switching the account resolver")
    if not current.authorization.has_callout and wanted.authorization.has_callout:
        # The id of this server has no private key to sign requests with.
        raise NotReloadable("config reload not supported for switching auth_callout on")
    return wanted


def _may_become(current: Block | None, wanted: Block | None, parts: frozenset[str]) -> bool:
    """Whether only these fields of the block differ."""
    if isinstance(wanted, LeafNodeOptions) and current is None:
        return not wanted.port  # remotes may come and go, a port may not
    if isinstance(current, LeafNodeOptions) and wanted is None:
        return not current.port
    if not parts or current is None or wanted is None:
        return current == wanted
    if getattr(current, "tls", None) is None and "tls" in parts:
        parts -= {"tls"}  # certificates may change, but TLS is not switched on or off
    elif "tls" in parts and getattr(wanted, "tls", None) is None:
        return False
    kept = {name: getattr(current, name) for name in parts}
    return bool(replace(wanted, **kept) == current)
