"""The `leafnodes` block: the port for leaf nodes, and the hubs whose leaf node we are.

Owns: reading that block.
May not touch: the tls blocks inside, which are read like any other; checks across keys
(check_leafnodes.py).
Spec: NATS server configuration, leafnodes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

from broker.config.file import unsupported_keys as known
from broker.config.file import values
from broker.config.file.parser import Item, Map
from broker.config.file.report import ConfigReport
from broker.config.file.values import BadValue
from broker.config.options import (
    Authorization,
    LeafProxy,
    LeafRemote,
    LinkCompression,
    TlsOptions,
    User,
)
from broker.credentials import nkeys
from broker.subjects import valid_subject

ReadTls = Callable[[Map], dict[str, Any]]

MODES = {
    "not_supported": "not supported",
    "disabled": "off",
    "off": "off",
    "false": "off",
    "accept": "accept",
    "auto": "s2_auto",
    "s2_auto": "s2_auto",
    "on": "s2_auto",
    "enabled": "s2_auto",
    "true": "s2_auto",
    "fast": "s2_fast",
    "s2_fast": "s2_fast",
    "better": "s2_better",
    "s2_better": "s2_better",
    "best": "s2_best",
    "s2_best": "s2_best",
}
THRESHOLDS_MAX = 4
_THRESHOLDS = ("rtt_thresholds", "thresholds", "rtts", "rtt")


def read_compression(key: str, item: Item) -> LinkCompression:
    """Raises BadValue."""
    value = item.value
    if isinstance(value, bool | str):
        return LinkCompression(mode=_mode(str(value)))
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise BadValue(f'field "{key}" should be a boolean or a structure, got {kind}')
    mode, thresholds = "s2_auto", LinkCompression().thresholds_ns
    for raw, inner in value.items():
        if raw.lower() == "mode":
            mode = _mode(values.text(raw, inner))
        elif raw.lower() in _THRESHOLDS:
            thresholds = _thresholds(raw, inner)
        else:
            raise BadValue(f'unknown field "{raw}"')
    return LinkCompression(mode, thresholds)


def _mode(word: str) -> str:
    mode = MODES.get(word.lower().replace(" ", "_"))
    if mode is None:
        raise BadValue(f'unsupported compression mode "{word}"')
    return mode


def _thresholds(key: str, item: Item) -> tuple[int, ...]:
    if not isinstance(item.value, list):
        raise BadValue(f'Expected "{key}" to be an array')
    found = [max(0, values.duration(key, one)) for one in item.value]
    used = [one for one in found if one]
    if any(later < earlier for earlier, later in pairwise(used)):
        raise BadValue("RTT threshold values should be in ascending order")
    while found and not found[-1]:
        found.pop()
    if len(found) > THRESHOLDS_MAX:
        raise BadValue(f"there should be no more than {THRESHOLDS_MAX} RTT thresholds")
    if not found:
        raise BadValue('compression mode "s2_auto" requires at least one RTT threshold')
    return tuple(found)


_KEYS: dict[str, tuple[str, Callable[[str, Item], object]]] = {
    "host": ("host", values.text),
    "net": ("host", values.text),
    "port": ("port", values.integer),
    "advertise": ("advertise", values.text),
    "leafnode_advertise": ("advertise", values.text),
    "no_advertise": ("no_advertise", values.boolean),
    "compression": ("compression", read_compression),
    "dial_timeout": ("dial_timeout_ns", values.duration),
    "isolate": ("isolated", values.boolean),
    "isolate_leafnode_interest": ("isolated", values.boolean),
    "reconnect": ("reconnect_ns", values.duration),
    "reconnect_delay": ("reconnect_ns", values.duration),
    "reconnect_interval": ("reconnect_ns", values.duration),
    "write_deadline": ("write_deadline_ns", values.duration),
}


def apply_leafnodes(
    report: ConfigReport, settings: dict[str, Any], item: Item, read_tls: ReadTls
) -> None:
    for raw, inner in _map("leafnodes", item).items():
        key = raw.lower()
        with report.at(inner):
            if key == "listen":
                host, port = values.address(key, inner, host="")
                settings.update(host=host, port=port)
            elif key == "tls":
                settings["tls"] = read_tls(_map(key, inner))
            elif key == "authorization":
                settings["authorization"] = _authorization(report, _map(key, inner))
            elif key == "remotes":
                settings["remotes"] = _remotes(report, inner, read_tls)
            elif key in ("min_version", "minimum_version"):
                settings["min_version"] = _version(key, inner)
            elif key in _KEYS:
                name, read = _KEYS[key]
                settings[name] = read(key, inner)
            else:
                report.refuse(raw, inner, known.LEAFNODES)


def _version(key: str, item: Item) -> str:
    """Older servers cannot be excluded by a version that all have that speak this protocol."""
    found = values.text(key, item)
    parts = found.removeprefix("v").split("-", maxsplit=1)[0].split(".")
    if len(parts) != 3 or not all(part.isdigit() for part in parts):
        raise BadValue(f'invalid leafnode\'s minimum version: invalid semver "{found}"')
    if [int(part) for part in parts] < [2, 8, 0]:
        raise BadValue("the minimum version should be at least 2.8.0")
    return found


def _authorization(report: ConfigReport, block: Map) -> Authorization | None:
    settings: dict[str, Any] = {}
    users: tuple[User, ...] = ()
    timeout_ns = None
    for raw, item in block.items():
        key = raw.lower()
        with report.at(item):
            if key == "users":
                users = _users(report, item)
            elif key == "timeout":
                timeout_ns = values.duration(key, item)
            else:
                _user_key(report, settings, raw, item)
    if settings.get("name"):
        if users:
            raise BadValue("can not have a single user/pass and a users array")
        users = (User(**settings),)
    if not users and timeout_ns is None:
        return None
    return Authorization(users=users, timeout_ns=timeout_ns)


def _users(report: ConfigReport, item: Item) -> tuple[User, ...]:
    if not isinstance(item.value, list):
        raise BadValue("Expected users field to be an array")
    found: list[User] = []
    for entry in item.value:
        with report.at(entry):
            settings: dict[str, Any] = {}
            for raw, inner in _map("user", entry).items():
                _user_key(report, settings, raw, inner)
            if not settings.get("name"):
                raise BadValue("User entry requires a user")
            found.append(User(**settings))
    return tuple(found)


def _user_key(report: ConfigReport, settings: dict[str, Any], raw: str, item: Item) -> None:
    key = raw.lower()
    if key in ("user", "username"):
        settings["name"] = values.text(key, item)
    elif key in ("pass", "password"):
        settings["password"] = values.text(key, item)
    elif key == "account":
        settings["account"] = values.text(key, item)
    elif key == "nkey":
        public = values.text(key, item)
        if not nkeys.is_public(public, nkeys.KeyKind.USER):
            raise BadValue("Not a valid public nkey for leafnode authorization")
        settings.update(name=public, nkey=True)
    else:
        report.refuse(raw, item, known.USER)


def _remotes(report: ConfigReport, item: Item, read_tls: ReadTls) -> tuple[LeafRemote, ...]:
    if not isinstance(item.value, list):
        raise BadValue("Expected remotes field to be an array")
    found: list[LeafRemote] = []
    for entry in item.value:
        with report.at(entry):
            found.append(_remote(report, _map("remote", entry), read_tls))
    return tuple(found)


def _remote(report: ConfigReport, block: Map, read_tls: ReadTls) -> LeafRemote:
    settings: dict[str, Any] = {}
    for raw, inner in block.items():
        key = raw.lower()
        with report.at(inner):
            if key == "tls":
                settings["tls"] = TlsOptions(**read_tls(_map(key, inner)))
            elif key == "proxy":
                settings["proxy"] = _proxy(report, _map(key, inner))
            elif key in ("jetstream_cluster_migrate", "js_cluster_migrate"):
                _migrate(report, key, inner)
            elif key in _REMOTE:
                name, read = _REMOTE[key]
                settings[name] = read(key, inner)
            else:
                report.refuse(raw, inner, frozenset())
    if settings.get("credentials") and settings.get("nkey"):
        raise BadValue("remote leafnode can not have both creds and nkey defined")
    if not settings.get("urls"):
        raise BadValue("remote leafnode configuration requires a url")
    if settings.get("proxy") is not None:
        _check_proxied(settings)
    return LeafRemote(**settings)


def _migrate(report: ConfigReport, key: str, item: Item) -> None:
    """Checked, and of no use: of the nodes that are connected to the hub, one speaks for all
    streams of the cluster (broker/cluster/peers/hub_speaker.py), wherever they are led."""
    if not isinstance(item.value, dict):
        values.boolean(key, item)
        return
    for raw, inner in item.value.items():
        if raw.lower() == "leader_migrate_delay":
            values.duration(raw, inner)
        else:
            report.refuse(raw, inner, frozenset())


def _proxy(report: ConfigReport, block: Map) -> LeafProxy | None:
    settings: dict[str, Any] = {}
    for raw, item in block.items():
        key = raw.lower()
        if key in ("url", "username", "password"):
            settings[key] = values.text(key, item)
        elif key == "timeout":
            settings["timeout_ns"] = values.duration(key, item)
        else:
            report.refuse(raw, item, frozenset())
    user = settings.pop("username", "")
    if not settings.get("url"):
        return None
    try:
        parts = urlsplit(settings["url"])
        usable = bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError as error:
        raise BadValue(f"invalid proxy URL: {error}") from error
    if parts.scheme != "http":
        raise BadValue(f"proxy URL scheme must be http, got: {parts.scheme}")
    if not usable:
        raise BadValue("proxy URL must specify a host")
    if settings.get("timeout_ns", 0) < 0:
        raise BadValue("proxy timeout must be >= 0")
    if bool(user) != bool(settings.get("password")):
        raise BadValue("proxy username and password must both be specified or both be empty")
    return LeafProxy(user=user, **settings)


def _check_proxied(settings: dict[str, Any]) -> None:
    for url in settings["urls"]:
        scheme = urlsplit(url).scheme
        if scheme not in ("ws", "wss"):
            raise BadValue(f"a proxy is for ws:// and wss:// URLs only, not for {url}")
        if scheme == "wss" and settings.get("tls") is None:
            raise BadValue(
                f"proxy is configured but remote URL {url} requires TLS and no TLS configuration "
                "is provided"
            )


def _urls(key: str, item: Item) -> tuple[str, ...]:
    found = tuple(values.texts(key, item))
    for url in found:
        try:
            parts = urlsplit(url if "//" in url else f"nats-leaf://{url}")
            usable = bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            usable = False
        if not usable:
            raise BadValue(f'error parsing leafnode url ["{url}"]')
    over_websocket = [url for url in found if urlsplit(url).scheme in ("ws", "wss")]
    if over_websocket and len(over_websocket) < len(found):
        raise BadValue(
            "remote leaf node configuration cannot have a mix of websocket and non-websocket urls"
        )
    return found


def _subjects(key: str, item: Item) -> tuple[bytes, ...]:
    found = tuple(word.encode() for word in values.texts(key, item))
    for subject in found:
        if not valid_subject(subject, wildcards=True):
            raise BadValue(f'subject "{subject.decode()}" is not a valid subject')
    return found


_REMOTE: dict[str, tuple[str, Callable[[str, Item], object]]] = {
    "url": ("urls", _urls),
    "urls": ("urls", _urls),
    "deny_import": ("deny_imports", _subjects),
    "deny_imports": ("deny_imports", _subjects),
    "deny_export": ("deny_exports", _subjects),
    "deny_exports": ("deny_exports", _subjects),
    "account": ("account", values.text),
    "local": ("account", values.text),
    "creds": ("credentials", values.text),
    "credentials": ("credentials", values.text),
    "nkey": ("nkey", values.text),
    "seed": ("nkey", values.text),
    "first_info_timeout": ("first_info_timeout_ns", values.duration),
    "no_randomize": ("no_randomize", values.boolean),
    "dont_randomize": ("no_randomize", values.boolean),
    "ignore_discovered_servers": ("ignore_discovered_servers", values.boolean),
    "disabled": ("disabled", values.boolean),
    "hub": ("hub", values.boolean),
    "isolate": ("isolated", values.boolean),
    "isolate_leafnode_interest": ("isolated", values.boolean),
    "request_isolation": ("request_isolation", values.boolean),
    "compression": ("compression", read_compression),
    "dial_timeout": ("dial_timeout_ns", values.duration),
    "ws_compress": ("ws_compression", values.boolean),
    "ws_compression": ("ws_compression", values.boolean),
    "websocket_compress": ("ws_compression", values.boolean),
    "websocket_compression": ("ws_compression", values.boolean),
    "ws_no_masking": ("ws_no_masking", values.boolean),
    "websocket_no_masking": ("ws_no_masking", values.boolean),
}


def _map(key: str, item: Item) -> Map:
    if not isinstance(item.value, dict):
        raise BadValue(f"Expected {key} to be a map, got {type(item.value).__name__}")
    return item.value
