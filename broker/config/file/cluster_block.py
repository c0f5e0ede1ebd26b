"""The `cluster` block: its keys.

Owns: reading that block.
May not touch: the tls block inside, which is read like any other; checks across keys (draft.py).
Spec: NATS server configuration, cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.config.file import unsupported_keys as known
from broker.config.file import values
from broker.config.file.authorization_block import permissions
from broker.config.file.leafnodes_block import read_compression
from broker.config.file.parser import Item, Map
from broker.config.file.report import ConfigReport
from broker.config.file.values import BadValue


def _routes(key: str, item: Item) -> tuple[str, ...]:
    urls = tuple(values.texts(key, item))
    for url in urls:
        values.route_address(url)
    return urls


_KEYS: dict[str, tuple[str, Callable[[str, Item], object]]] = {
    "name": ("name", values.text),
    "host": ("host", values.text),
    "net": ("host", values.text),
    "port": ("port", values.integer),
    "routes": ("routes", _routes),
    "advertise": ("advertise", values.text),
    "cluster_advertise": ("advertise", values.text),
    "no_advertise": ("no_advertise", values.boolean),
    "compression": ("compression", read_compression),
    "ping_interval": ("ping_interval_ns", values.duration),
    "ping_max": ("ping_max", values.integer),
}


# Checked, and of no use here: two nodes have one connection for all messages of all accounts, which
# take turns, and routes are dialed forever, with a delay that grows to a second.
_WITHOUT_EFFECT: dict[str, Callable[[str, Item], object]] = {
    "pool_size": values.integer,
    "accounts": values.texts,
    "connect_retries": values.integer,
    "connect_backoff": values.boolean,
}


def apply_cluster(
    report: ConfigReport,
    settings: dict[str, Any],
    item: Item,
    read_tls: Callable[[Map], dict[str, object]],
) -> None:
    for raw, inner in _map("cluster", item).items():
        name = raw.lower()
        with report.at(inner):
            if name == "listen":
                host, port = values.address(name, inner, host="")
                settings.update(host=host, port=port)
            elif name in _KEYS:
                field, read = _KEYS[name]
                settings[field] = read(name, inner)
            elif name in _WITHOUT_EFFECT:
                _WITHOUT_EFFECT[name](name, inner)
            elif name == "permissions":
                settings["permissions"] = permissions(_map(name, inner))
            elif name == "authorization":
                _authorization(report, settings, _map(name, inner))
            elif name == "tls":
                settings["tls"] = read_tls(_map(name, inner))
            else:
                report.refuse(raw, inner, known.CLUSTER)


def _authorization(report: ConfigReport, settings: dict[str, Any], block: Map) -> None:
    for raw, item in block.items():
        key = raw.lower()
        with report.at(item):
            if key in ("user", "username"):
                settings["user"] = values.text(key, item)
            elif key in ("pass", "password"):
                settings["password"] = values.text(key, item)
            elif key == "timeout":
                values.duration(key, item)
            else:
                report.refuse(raw, item, known.AUTHORIZATION)


def _map(key: str, item: Item) -> Map:
    if not isinstance(item.value, dict):
        raise BadValue(f"Expected map to define {key}, got {type(item.value).__name__}")
    return item.value
