"""Keys of the configuration file: what each one sets.

Owns: the tables of keys per block; unknown keys are refused with their name and position.
May not touch: the grammar (parser.py) and checks across keys (draft.py).
Spec: NATS server configuration file. Every bad key is reported, not only the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from broker.config.draft import Draft
from broker.config.file import unsupported_keys as known
from broker.config.file import values
from broker.config.file.accounts_block import apply_accounts
from broker.config.file.authorization_block import apply_authorization
from broker.config.file.cluster_block import apply_cluster
from broker.config.file.leafnodes_block import apply_leafnodes
from broker.config.file.mappings_block import read_mappings
from broker.config.file.operator_block import (
    apply_operator,
    apply_preload,
    apply_resolver,
    apply_resolver_tls,
    apply_trusted_keys,
)
from broker.config.file.parser import Item, Map
from broker.config.file.report import ConfigReport
from broker.config.file.tls_choices import TLS_CHOICES
from broker.config.file.values import BadValue
from broker.config.file.websocket_block import apply_websocket

Setter: TypeAlias = Callable[["_File", str, Item], None]


class BadConfiguration(Exception):
    """str() has one line per fault."""


def apply(tree: Map, draft: Draft, *, path: str) -> None:
    """Write the settings of the file into the draft. Raises BadConfiguration."""
    file = _File(draft, ConfigReport(path))
    file.report.block(tree, _TOP, known.TOP, file)
    if file.report.errors:
        raise BadConfiguration("\n".join(file.report.errors))


class _File:
    """The draft under construction and the faults found so far."""

    __slots__ = ("draft", "report")

    def __init__(self, draft: Draft, report: ConfigReport) -> None:
        self.draft = draft
        self.report = report


# -- setters of single values ------------------------------------------------------------------


def _text(part: str, name: str) -> Setter:
    def put(file: _File, key: str, item: Item) -> None:
        getattr(file.draft, part)[name] = values.text(key, item)

    return put


def _integer(part: str, name: str) -> Setter:
    def put(file: _File, key: str, item: Item) -> None:
        getattr(file.draft, part)[name] = values.integer(key, item)

    return put


def _boolean(part: str, name: str) -> Setter:
    def put(file: _File, key: str, item: Item) -> None:
        getattr(file.draft, part)[name] = values.boolean(key, item)

    return put


def _duration(part: str, name: str) -> Setter:
    def put(file: _File, key: str, item: Item) -> None:
        if isinstance(item.value, int):
            file.draft.warnings.append(
                f'{key}: a number means seconds; write "{item.value}s" instead'
            )
        getattr(file.draft, part)[name] = values.duration(key, item)

    return put


def _listen(file: _File, key: str, item: Item) -> None:
    host, port = values.address(key, item, host=file.draft.top.get("host", ""))
    file.draft.top.update(host=host, port=port)


def _server_tags(file: _File, key: str, item: Item) -> None:
    file.draft.top["server_tags"] = tuple(values.texts(key, item))


def _metadata(file: _File, key: str, item: Item) -> None:
    found = {name: values.text(name, one) for name, one in _map(key, item).items()}
    file.draft.top["server_metadata"] = found


def _trace_verbose(file: _File, key: str, item: Item) -> None:
    file.draft.logging["trace_verbose"] = values.boolean(key, item)
    if values.boolean(key, item):
        file.draft.logging["trace"] = True


def _log_format(file: _File, key: str, item: Item) -> None:
    word = values.text(key, item).lower()
    if word not in ("text", "json"):
        raise BadValue(f'log_format is text or json, not "{word}"')
    file.draft.logging["json"] = word == "json"


def _no_stall(file: _File, key: str, item: Item) -> None:
    file.draft.limits["stall_producers"] = not values.boolean(key, item)


def _default_domains(file: _File, key: str, item: Item) -> None:
    for account, one in _map(key, item).items():
        domain = values.text(account, one)
        if not domain or "." in domain or " " in domain or "*" in domain or ">" in domain:
            raise BadValue(f'"{domain}" is not the name of a domain')
        file.draft.default_domains[account] = domain


def _write_timeout(file: _File, key: str, item: Item) -> None:
    """What happens to a client when a write takes longer than write_deadline: it is closed."""
    word = values.text(key, item).lower()
    if word == "retry":
        raise BadValue('not supported yet: write_timeout "retry"; a slow client is closed')
    if word not in ("default", "close"):
        raise BadValue(f'error parsing write_timeout: invalid value "{word}"')


def _max_connections(file: _File, key: str, item: Item) -> None:
    # Zero in a file means no connections; zero as a default means no limit.
    file.draft.limits["max_connections"] = values.integer(key, item) or -1


def _no_header_support(file: _File, key: str, item: Item) -> None:
    file.draft.top["headers"] = not values.boolean(key, item)


def _http(*, tls: bool) -> Setter:
    def put(file: _File, key: str, item: Item) -> None:
        host, port = values.address(key, item, host="")
        file.draft.http.update(host=host, port=port, tls=tls)

    return put


def _base_path(file: _File, key: str, item: Item) -> None:
    file.draft.http["base_path"] = "/" + values.text(key, item).strip("/")


def _store_dir(file: _File, key: str, item: Item) -> None:
    if (file.draft.jetstream or {}).get("store_dir"):
        raise BadValue("Duplicate 'store_dir' configuration")
    file.draft.store_dir = values.text(key, item)


# -- blocks ------------------------------------------------------------------------------------


def _authorization(file: _File, key: str, item: Item) -> None:
    apply_authorization(file.report, file.draft.authorization, _map(key, item))


def _accounts(file: _File, key: str, item: Item) -> None:
    apply_accounts(file.report, file.draft, item)


def _mappings(file: _File, key: str, item: Item) -> None:
    file.draft.top["mappings"] = read_mappings(file.report, item)


_CONSOLE: dict[str, Setter] = {"admin": _boolean("console", "admin")}


def _console(file: _File, key: str, item: Item) -> None:
    file.report.block(_map(key, item), _CONSOLE, frozenset(), file)


def _websocket(file: _File, key: str, item: Item) -> None:
    settings = file.draft.websocket = dict(file.draft.websocket or {})
    apply_websocket(file.report, settings, item, lambda block: _tls_settings(file, block))


def _leafnodes(file: _File, key: str, item: Item) -> None:
    settings = file.draft.leafnodes = dict(file.draft.leafnodes or {})
    apply_leafnodes(file.report, settings, item, lambda block: _tls_settings(file, block))


def _operator(file: _File, key: str, item: Item) -> None:
    apply_operator(file.draft, key, item)


def _resolver(file: _File, key: str, item: Item) -> None:
    apply_resolver(file.draft, key, item)


def _preload(file: _File, key: str, item: Item) -> None:
    apply_preload(file.draft, key, item)


def _trusted_keys(file: _File, key: str, item: Item) -> None:
    apply_trusted_keys(file.draft, key, item)


def _resolver_tls(file: _File, key: str, item: Item) -> None:
    apply_resolver_tls(file.draft, _tls_settings(file, _map(key, item)))


def _no_auth_user(file: _File, key: str, item: Item) -> None:
    file.draft.authorization["no_auth_user"] = values.text(key, item)


def _tls(file: _File, key: str, item: Item) -> None:
    file.draft.tls = _tls_settings(file, _map(key, item))


def _tls_settings(file: _File, block: Map) -> dict[str, object]:
    settings: dict[str, object] = {}
    for raw, item in block.items():
        key = raw.lower()
        with file.report.at(item):
            if key in ("cert_file", "key_file", "ca_file", "min_version"):
                settings[key] = values.text(key, item) if key != "min_version" else str(item.value)
            elif key in ("verify", "insecure"):
                settings[key] = values.boolean(key, item)
            elif key in TLS_CHOICES:
                settings.update(TLS_CHOICES[key](key, item))
            elif key == "timeout":
                settings["timeout_ns"] = values.duration(key, item)
            elif key in ("handshake_first", "first", "immediate"):
                settings.update(_handshake_first(key, item))
            elif key in known.TLS:
                raise BadValue(f'not supported yet: "{raw}"')
            elif not item.used:
                raise BadValue(f'error parsing tls config, unknown field "{raw}"')
    if settings.get("min_version") not in (None, "1.2", "1.3"):
        file.report.errors.append(f"unsupported TLS min_version {settings['min_version']}")
    return settings


def _handshake_first(key: str, item: Item) -> dict[str, object]:
    if isinstance(item.value, bool):
        return {"handshake_first": item.value}
    word = values.text(key, item)
    wait_ns = 50_000_000 if word.lower() == "auto" else values.parse_duration(word)
    return {"handshake_first": True, "handshake_fallback_ns": wait_ns}


def _jetstream(file: _File, key: str, item: Item) -> None:
    if isinstance(item.value, bool | str):
        word = str(item.value).lower()
        if word not in ("true", "false", "enabled", "enable", "disabled", "disable"):
            raise BadValue(f"Expected 'enabled' or 'disabled' for string value, got '{word}'")
        if word.startswith(("true", "enable")):
            file.draft.jetstream = file.draft.jetstream or {}
        return
    settings: dict[str, object] = {}
    enabled = True
    for raw, inner in _map(key, item).items():
        name = raw.lower()
        with file.report.at(inner):
            if name in ("enabled", "enable"):
                enabled = values.boolean(name, inner)
            elif name in _JETSTREAM:
                field, read = _JETSTREAM[name]
                settings[field] = read(name, inner)
            elif name in _JETSTREAM_BLOCKS:
                settings[name] = _JETSTREAM_BLOCKS[name](file, _map(name, inner))
            else:
                file.report.refuse(raw, inner, known.JETSTREAM)
    settings.pop(_UNUSED, None)
    if settings.get("store_dir") and file.draft.store_dir:
        raise BadValue("Duplicate 'store_dir' configuration")
    if enabled:
        file.draft.jetstream = {**(file.draft.jetstream or {}), **settings}


def _sync(key: str, item: Item) -> object:
    if item.value == "always":
        return "always"
    interval_ns = values.duration(key, item)
    return interval_ns if interval_ns > 0 else "always"  # an interval of zero means always


def _cipher(key: str, item: Item) -> str:
    name = values.text(key, item).lower()
    if name in ("chacha", "chachapoly"):
        return "chachapoly"
    if name == "aes":
        return "aes"
    raise BadValue(f'Unknown cipher type: "{item.value}"')


_UNUSED = ""  # the field of what is checked only
_JETSTREAM: dict[str, tuple[str, Callable[[str, Item], object]]] = {
    "store_dir": ("store_dir", values.text),
    "store": ("store_dir", values.text),
    "storedir": ("store_dir", values.text),
    "max_memory_store": ("max_memory_store", values.size),
    "max_mem_store": ("max_memory_store", values.size),
    "max_mem": ("max_memory_store", values.size),
    "max_file_store": ("max_file_store", values.size),
    "max_file": ("max_file_store", values.size),
    "max_buffered_size": ("max_buffered_bytes", values.size),
    "max_buffered_msgs": ("max_buffered_msgs", values.integer),
    "max_outstanding_catchup": (_UNUSED, values.size),  # a follower has a window of its own
    "domain": ("domain", values.text),
    "sync_interval": ("sync", _sync),
    "sync": ("sync", _sync),
    "strict": ("strict", values.boolean),
    "unique_tag": ("unique_tag", values.text),
    "key": ("key", values.text),
    "ek": ("key", values.text),
    "encryption_key": ("key", values.text),
    "prev_key": ("previous_key", values.text),
    "prev_ek": ("previous_key", values.text),
    "prev_encryption_key": ("previous_key", values.text),
    "cipher": ("cipher", _cipher),
    "replace_after": ("replace_after_ns", values.duration),
    "scrub_interval": ("scrub_interval_ns", values.duration),
    "feature_level": ("feature_level", values.integer),
    "max_scans": ("max_scans", values.positive),
    "max_account_scans": ("max_account_scans", values.positive),
    "max_scan_bytes": ("max_scan_bytes", values.positive),
    "max_account_scan_bytes": ("max_account_scan_bytes", values.positive),
}


def _jetstream_limits(file: _File, block: Map) -> object:
    from broker.config.options import JetStreamLimits

    settings: dict[str, int] = {}
    for raw, inner in block.items():
        name = raw.lower()
        with file.report.at(inner):
            if name in ("max_request_batch", "max_ack_pending"):
                settings[name] = values.integer(name, inner)
            elif name == "duplicate_window":
                settings["duplicate_window_ns"] = values.duration(name, inner)
            else:
                file.report.refuse(raw, inner, known.JETSTREAM_LIMITS)
    return JetStreamLimits(**settings)


def _remotes(file: _File, block: Map) -> dict[str, object]:
    from broker.config.options import Remote, TlsOptions

    found: dict[str, object] = {}
    for name, item in block.items():
        settings: dict[str, object] = {}
        with file.report.at(item):
            for raw, inner in _map(name, item).items():
                key = raw.lower()
                if key in ("url", "urls"):
                    settings["urls"] = tuple(values.texts(key, inner))
                elif key in ("user", "password", "token", "domain", "nkey"):
                    settings[key] = values.text(key, inner)
                elif key in ("creds", "credentials"):
                    settings["creds"] = values.text(key, inner)
                elif key == "tls":
                    settings[key] = TlsOptions(**_tls_settings(file, _map(key, inner)))  # type: ignore[arg-type]
                else:
                    file.report.refuse(raw, inner, frozenset())
            if not settings.get("urls"):
                raise BadValue(f'remote "{name}" needs urls')
            found[name] = Remote(**settings)  # type: ignore[arg-type]
    return found


_JETSTREAM_BLOCKS: dict[str, Callable[[_File, Map], object]] = {
    "limits": _jetstream_limits,
    "remotes": _remotes,
}


def _cluster(file: _File, key: str, item: Item) -> None:
    settings = file.draft.cluster = dict(file.draft.cluster or {})
    apply_cluster(file.report, settings, item, lambda block: _tls_settings(file, block))


def _map(key: str, item: Item) -> Map:
    if not isinstance(item.value, dict):
        raise BadValue(f"Expected map to define {key}, got {type(item.value).__name__}")
    return item.value


def _unused(read: Callable[[str, Item], object]) -> Setter:
    """Checked, and of no use: what it asks for is the case anyway."""

    def check(_: _File, key: str, item: Item) -> None:
        read(key, item)

    return check


def _reports(name: str) -> Setter:
    def put(file: _File, key: str, item: Item) -> None:
        attempts = values.integer(key, item)
        if attempts < 1:
            raise BadValue(f"{key}: at least 1, got {attempts}")
        file.draft.logging[name] = attempts

    return put


_TOP: dict[str, Setter] = {
    "disable_sublist_cache": _unused(values.boolean),
    "no_sublist_cache": _unused(values.boolean),
    "connect_error_reports": _reports("connect_error_reports"),
    "reconnect_error_reports": _reports("reconnect_error_reports"),
    "listen": _listen,
    "host": _text("top", "host"),
    "net": _text("top", "host"),
    "port": _integer("top", "port"),
    "server_name": _text("top", "server_name"),
    "server_tags": _server_tags,
    "mappings": _mappings,
    "maps": _mappings,
    "client_advertise": _text("top", "client_advertise"),
    "max_payload": _integer("limits", "max_payload"),
    "max_control_line": _integer("limits", "max_control_line"),
    "max_pending": _integer("limits", "max_pending"),
    "max_connections": _max_connections,
    "max_conn": _max_connections,
    "max_subscriptions": _integer("limits", "max_subscriptions"),
    "max_subs": _integer("limits", "max_subscriptions"),
    "max_sub_tokens": _integer("limits", "max_sub_tokens"),
    "max_closed_clients": _integer("limits", "max_closed_clients"),
    "write_deadline": _duration("limits", "write_deadline_ns"),
    "ping_interval": _duration("ping", "interval_ns"),
    "ping_max": _integer("ping", "outstanding_max"),
    "lame_duck_duration": _duration("lame_duck", "duration_ns"),
    "lame_duck_grace_period": _duration("lame_duck", "grace_ns"),
    "no_header_support": _no_header_support,
    "no_auth_user": _no_auth_user,
    "authorization": _authorization,
    "accounts": _accounts,
    **dict.fromkeys(("operator", "operators", "root", "roots"), _operator),
    **dict.fromkeys(("root_operator", "root_operators"), _operator),
    **dict.fromkeys(("resolver", "account_resolver", "account_resolvers"), _resolver),
    "resolver_preload": _preload,
    "resolver_tls": _resolver_tls,
    "trusted": _trusted_keys,
    "trusted_keys": _trusted_keys,
    "system_account": _text("top", "system_account"),
    "system": _text("top", "system_account"),
    "tls": _tls,
    "allow_non_tls": _boolean("top", "allow_non_tls"),
    "proxy_protocol": _boolean("top", "proxy_protocol"),
    "jetstream": _jetstream,
    "store_dir": _store_dir,
    "cluster": _cluster,
    "websocket": _websocket,
    "ws": _websocket,
    "leafnodes": _leafnodes,
    "leaf": _leafnodes,
    "debug": _boolean("logging", "debug"),
    "trace": _boolean("logging", "trace"),
    "logtime": _boolean("logging", "logtime"),
    "logtime_utc": _boolean("logging", "logtime_utc"),
    "log_format": _log_format,
    "log_file": _text("logging", "log_file"),
    "logfile": _text("logging", "log_file"),
    "logfile_max_num": _integer("logging", "max_num"),
    "log_max_num": _integer("logging", "max_num"),
    "syslog": _boolean("logging", "syslog"),
    "remote_syslog": _text("logging", "remote_syslog"),
    "trace_verbose": _trace_verbose,
    "trace_headers": _boolean("logging", "trace_headers"),
    "server_metadata": _metadata,
    "write_timeout": _write_timeout,
    "no_fast_producer_stall": _no_stall,
    "default_js_domain": _default_domains,
    "logfile_size_limit": _integer("logging", "size_limit"),
    "log_size_limit": _integer("logging", "size_limit"),
    "max_traced_msg_len": _integer("logging", "max_traced_msg_len"),
    "pid_file": _text("top", "pid_file"),
    "pidfile": _text("top", "pid_file"),
    "ports_file_dir": _text("top", "ports_file_dir"),
    "http": _http(tls=False),
    "http_port": _http(tls=False),
    "monitor_port": _http(tls=False),
    "https": _http(tls=True),
    "https_port": _http(tls=True),
    "http_base_path": _base_path,
    "console": _console,
}
