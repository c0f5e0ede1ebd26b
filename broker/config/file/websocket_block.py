"""The `websocket` block: its keys.

Owns: reading that block.
May not touch: the tls block inside, which is read like any other; which keys exclude each other
(check_websocket.py).
Spec: NATS server configuration, websocket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from broker.config.file import unsupported_keys as known
from broker.config.file import values
from broker.config.file.parser import Item, Map
from broker.config.file.report import ConfigReport
from broker.config.file.values import BadValue


def _headers(key: str, item: Item) -> dict[str, str]:
    if not isinstance(item.value, dict):
        raise BadValue(f"error parsing headers: unsupported type {type(item.value).__name__}")
    found = {name: values.text(name, inner) for name, inner in item.value.items()}
    for name, value in found.items():
        if set(name + value) & set("\r\n") or not name.isascii() or ":" in name:
            raise BadValue(f"invalid header {name!r}")
    return found


def _origins(key: str, item: Item) -> tuple[str, ...]:
    found = tuple(values.texts(key, item))
    for one in found:
        try:
            parts = urlsplit(one)
            usable = parts.hostname and (parts.port or 1) and parts.scheme in ("http", "https")
        except ValueError:
            usable = None
        if not usable:
            raise BadValue(f'unable to parse allowed origin: "{one}"')
    return found


_KEYS: dict[str, tuple[str, Callable[[str, Item], object]]] = {
    "host": ("host", values.text),
    "net": ("host", values.text),
    "port": ("port", values.integer),
    "advertise": ("advertise", values.text),
    "no_tls": ("no_tls", values.boolean),
    "same_origin": ("same_origin", values.boolean),
    "compression": ("compression", values.boolean),
    "compress": ("compression", values.boolean),
    "handshake_timeout": ("handshake_timeout_ns", values.duration),
    "ping_interval": ("ping_interval_ns", values.duration),
    "user_cookie": ("user_cookie", values.text),
    "pass_cookie": ("pass_cookie", values.text),
    "token_cookie": ("token_cookie", values.text),
    "jwt_cookie": ("jwt_cookie", values.text),
    "no_auth_user": ("no_auth_user", values.text),
    "headers": ("headers", _headers),
    "allowed_origins": ("allowed_origins", _origins),
    "allowed_origin": ("allowed_origins", _origins),
    "allow_origins": ("allowed_origins", _origins),
    "allow_origin": ("allowed_origins", _origins),
    "origins": ("allowed_origins", _origins),
    "origin": ("allowed_origins", _origins),
}

_AUTHORIZATION: dict[str, tuple[str, Callable[[str, Item], object]]] = {
    "user": ("user", values.text),
    "username": ("user", values.text),
    "pass": ("password", values.text),
    "password": ("password", values.text),
    "token": ("token", values.text),
    "timeout": ("auth_timeout_ns", values.duration),
}


def apply_websocket(
    report: ConfigReport,
    settings: dict[str, Any],
    item: Item,
    read_tls: Callable[[Map], dict[str, Any]],
) -> None:
    for raw, inner in _map("websocket", item).items():
        key = raw.lower()
        with report.at(inner):
            if key == "listen":
                host, port = values.address(key, inner, host="")
                settings.update(host=host, port=port)
            elif key == "tls":
                settings["tls"] = read_tls(_map(key, inner))
            elif key in ("authorization", "authentication"):
                _authorization(report, settings, _map(key, inner))
            elif key in _KEYS:
                name, read = _KEYS[key]
                settings[name] = read(key, inner)
            else:
                report.refuse(raw, inner, frozenset())


def _authorization(report: ConfigReport, settings: dict[str, Any], block: Map) -> None:
    for raw, inner in block.items():
        with report.at(inner):
            if raw.lower() in _AUTHORIZATION:
                name, read = _AUTHORIZATION[raw.lower()]
                settings[name] = read(raw, inner)
            else:
                report.refuse(raw, inner, known.AUTHORIZATION)


def _map(key: str, item: Item) -> Map:
    if not isinstance(item.value, dict):
        raise BadValue(f"Expected {key} to be a map, got {type(item.value).__name__}")
    return item.value
