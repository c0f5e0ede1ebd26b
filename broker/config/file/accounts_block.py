"""The `accounts` block: users, JetStream limits, exports and imports.

Owns: reading that block.
May not touch: whether imports and exports match (check_accounts.py), messages.
Spec: NATS server configuration, accounts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from broker.config.draft import Draft
from broker.config.file import unsupported_keys as known
from broker.config.file import values
from broker.config.file.authorization_block import permissions, read_users
from broker.config.file.mappings_block import read_mappings
from broker.config.file.parser import Item, Map
from broker.config.file.report import ConfigReport
from broker.config.file.values import BadValue
from broker.config.options import AccountOptions, AccountStore, Export, Import, ServiceLatency, User
from broker.credentials import nkeys
from broker.subjects import valid_subject

RESERVED = "$G"
PERCENT_MAX = 100
_LIMITS = {
    "max_connections": "max_connections",
    "max_conn": "max_connections",
    "max_subscriptions": "max_subscriptions",
    "max_subs": "max_subscriptions",
    "max_payload": "max_payload",
    "max_pay": "max_payload",
}
_STORE = {
    "max_memory": "max_memory",
    "max_mem": "max_memory",
    "mem": "max_memory",
    "max_store": "max_storage",
    "max_file": "max_storage",
    "max_disk": "max_storage",
    "store": "max_storage",
    "disk": "max_storage",
    "max_streams": "max_streams",
    "streams": "max_streams",
    "max_consumers": "max_consumers",
    "consumers": "max_consumers",
    "max_ack_pending": "max_ack_pending",
    "memory_max_stream_bytes": "memory_max_stream_bytes",
    "mem_max_stream_bytes": "memory_max_stream_bytes",
    "store_max_stream_bytes": "storage_max_stream_bytes",
    "disk_max_stream_bytes": "storage_max_stream_bytes",
}
_BYTES_REQUIRED = ("max_stream_bytes", "max_bytes", "max_bytes_required")


def apply_accounts(report: ConfigReport, draft: Draft, item: Item) -> None:
    if isinstance(item.value, list):  # names only
        blocks: Map = {values.text("accounts", one): Item({}, one.line, one.column)
                       for one in item.value}  # fmt: skip
    elif isinstance(item.value, dict):
        blocks = item.value
    else:
        raise BadValue("Expected accounts field to be a map or an array")
    for name, block in blocks.items():
        with report.at(block):
            if name == RESERVED:
                raise BadValue(f'"{name}" is a Reserved Account')
            if not isinstance(block.value, dict):
                raise BadValue("Expected map entries for accounts")
            _account(report, draft, name, block.value)


def _account(report: ConfigReport, draft: Draft, name: str, block: Map) -> None:
    settings: dict[str, Any] = {}
    users: tuple[User, ...] = ()
    default = None
    for raw, item in block.items():
        key = raw.lower()
        with report.at(item):
            if key == "users":
                users = read_users(report, item)
            elif key == "default_permissions":
                default = permissions(_map(key, item))
            elif key == "jetstream":
                store = _jetstream(report, item)
                if store is not None:
                    draft.account_stores[name] = store
            elif key in _READ:
                settings.update(_READ[key](key, item))
            elif key in _RULES:
                kind, read = _RULES[key]
                settings[kind] = read(report, item)
            else:
                report.refuse(raw, item, frozenset())
    draft.accounts.append(AccountOptions(name, **settings))
    for user in users:
        rules = user.permissions or default
        draft.account_users.append(replace(user, permissions=rules, account=name))


def _nkey(key: str, item: Item) -> dict[str, Any]:
    """Accepted and checked, but not used: the name of the account is its identity here."""
    text = values.text(key, item)
    if not nkeys.is_public(text, nkeys.KeyKind.ACCOUNT):
        raise BadValue(f'Not a valid public nkey for an account: "{text}"')
    return {}


def _limits(outer: str, block: Item) -> dict[str, int]:
    found: dict[str, int] = {}
    for raw, item in _map(outer, block).items():
        key = raw.lower()
        if key in _LIMITS:
            found[_LIMITS[key]] = values.integer(key, item)
        elif key in ("max_leafnodes", "max_leafs"):
            values.integer(key, item)  # there are no leaf nodes to limit
        else:
            raise BadValue(f'Unknown field "{raw}" parsing account limits')
    return found


def _trace(key: str, item: Item) -> dict[str, Any]:
    """A subject, or a map of `dest` and `sampling` (percent, with or without the % sign)."""
    block = item.value if isinstance(item.value, dict) else {"dest": item}
    found: dict[str, Any] = {}
    for raw, inner in block.items():
        name = raw.lower()
        if name == "dest":
            subject = values.text(name, inner)
            if not valid_subject(subject.encode(), wildcards=False):
                raise BadValue(f'Trace destination "{subject}" is not valid')
            found["trace_dest"] = subject.encode()
        elif name == "sampling":
            text = str(inner.value).removesuffix("%")
            if not text.isdigit() or not 0 < int(text) <= PERCENT_MAX:
                raise BadValue(
                    f"trace destination sampling {text} is invalid, needs to be [1..100]"
                )
            found["trace_sampling"] = int(text)
        else:
            raise BadValue(f'Unknown field "{raw}" parsing account message trace map "{key}"')
    return found


_READ: dict[str, Callable[[str, Item], dict[str, Any]]] = {
    "limits": _limits,
    "nkey": _nkey,
    "msg_trace": _trace,
    "trace_dest": _trace,
}


def _jetstream(report: ConfigReport, item: Item) -> AccountStore | None:
    if isinstance(item.value, bool | str):
        word = str(item.value).lower()
        if word not in ("true", "false", "enabled", "enable", "disabled", "disable"):
            raise BadValue(f"Expected 'enabled' or 'disabled' for string value, got '{word}'")
        return AccountStore() if word.startswith(("true", "enable")) else None
    if not isinstance(item.value, dict):
        kind = type(item.value).__name__
        raise BadValue(f"Expected map, bool or string to define JetStream, got {kind}")
    settings: dict[str, Any] = {}
    for raw, inner in item.value.items():
        key = raw.lower()
        with report.at(inner):
            if key in _STORE:
                settings[_STORE[key]] = values.size(key, inner)
            elif key in _BYTES_REQUIRED:
                settings["max_bytes_required"] = values.boolean(key, inner)
            elif key == "cluster_traffic":
                if values.text(key, inner) not in ("system", "owner"):
                    raise BadValue(f"Expected 'system' or 'owner' for {key}")
            else:
                report.refuse(raw, inner, frozenset())
    return AccountStore(**settings)


# -- exports and imports -----------------------------------------------------------------------


def _each(report: ConfigReport, key: str, item: Item, read: Any) -> list[Any]:
    if not isinstance(item.value, list):
        raise BadValue(f"{key.capitalize()} should be an array, got {type(item.value).__name__}")
    found = []
    for entry in item.value:
        with report.at(entry):
            found.append(read(report, _map(key, entry)))
    return found


def _exports(report: ConfigReport, item: Item) -> tuple[Export, ...]:
    return tuple(_each(report, "exports", item, _export))


def _imports(report: ConfigReport, item: Item) -> tuple[Import, ...]:
    return tuple(_each(report, "imports", item, _import))


_RULES: dict[str, tuple[str, Callable[[ConfigReport, Item], tuple[object, ...]]]] = {
    "exports": ("exports", _exports),
    "imports": ("imports", _imports),
    "mappings": ("mappings", read_mappings),
    "maps": ("mappings", read_mappings),
}


def _export(report: ConfigReport, block: Map) -> Export:
    settings: dict[str, Any] = {}
    for raw, item in block.items():
        key = raw.lower()
        with report.at(item):
            if key in ("stream", "service"):
                _only_one(settings, key, values.text(key, item))
                settings["subject"] = _subject(values.text(key, item))
                settings["service"] = key == "service"
            elif key == "accounts":
                settings["accounts"] = tuple(values.texts(key, item))
            elif key in ("response", "response_type"):
                settings["many_answers"] = _many_answers(values.text(key, item))
            elif key in ("threshold", "response_threshold", "response_max_time"):
                settings["threshold_ns"] = values.duration(key, item)
            elif key in _OF_EXPORT:
                settings[key] = _OF_EXPORT[key](key, item)
            else:
                report.refuse(raw, item, known.EXPORT)
    if "subject" not in settings:
        raise BadValue("an export needs a stream or a service")
    if not settings["service"] and "latency" in settings:
        raise BadValue("Detected latency directive on non-service")
    _check_token_position(settings)
    if not settings["service"] and "allow_trace" in settings:
        raise BadValue("Detected allow_trace directive on non-service")
    return Export(**settings)


def _check_token_position(settings: dict[str, Any]) -> None:
    position = settings.get("account_token_position", 0)
    if not position:
        return
    words = settings["subject"].split(b".")
    if not 0 < position <= len(words) or words[position - 1] != b"*":
        raise BadValue(f"account_token_position {position} is not a wildcard of the subject")


def _latency(key: str, item: Item) -> ServiceLatency:
    if isinstance(item.value, str):
        return ServiceLatency(_subject(item.value))
    settings: dict[str, Any] = {}
    for raw, inner in _map(key, item).items():
        name = raw.lower()
        if name == "subject":
            settings["subject"] = _subject(values.text(name, inner))
        elif name == "sampling":
            settings["sampling"] = _sampling(inner.value)
        else:
            raise BadValue(f'unknown field "{raw}" of latency')
    if "subject" not in settings:
        raise BadValue("ServiceLatency subject required, but missing")
    return ServiceLatency(**settings)


_OF_EXPORT: dict[str, Callable[[str, Item], object]] = {
    "allow_trace": values.boolean,
    "latency": _latency,
    "account_token_position": values.integer,
}


def _sampling(value: object) -> int:
    word = str(value).strip().lower()
    if word == "headers":
        return 0
    digits = word.removesuffix("%").strip()
    if isinstance(value, bool) or not digits.isdigit():
        raise BadValue(f"failed to parse latency sample: {value}")
    if not 1 <= int(digits) <= PERCENT_MAX:
        raise BadValue("sampling value should be in range [1..100]")
    return int(digits)


def _many_answers(word: str) -> bool:
    kinds = {"single": False, "singleton": False, "stream": True, "chunk": True, "chunked": True}
    if word.lower() not in kinds:
        raise BadValue(f'Unknown response type: "{word}"')
    return kinds[word.lower()]


def _import(report: ConfigReport, block: Map) -> Import:
    settings: dict[str, Any] = {}
    words: dict[str, str] = {}
    for raw, item in block.items():
        key = raw.lower()
        with report.at(item):
            if key in ("stream", "service"):
                account, subject = _source(report, key, item)
                _only_one(settings, key, subject)
                settings |= {"account": account, "subject": _subject(subject)}
                settings["service"] = key == "service"
            elif key in ("to", "prefix"):
                words[key] = values.text(key, item)
            elif key in ("share", "allow_trace"):
                settings[key] = values.boolean(key, item)
            else:
                report.refuse(raw, item, frozenset())
    if "subject" not in settings:
        raise BadValue("an import needs a stream or a service")
    if settings["service"] and "allow_trace" in settings:
        raise BadValue("Detected allow_trace directive on a non-stream")
    if "prefix" in words:
        if settings["service"]:
            raise BadValue("Service import can not have a 'prefix' property")
        if "to" in words:
            raise BadValue("Stream import can not have a 'prefix' and a 'to' property")
        words["to"] = f"{words['prefix']}.{settings['subject'].decode()}"
    local = words.get("to") or settings["subject"].decode()
    return Import(**settings, local=_subject(local))


def _source(report: ConfigReport, key: str, item: Item) -> tuple[str, str]:
    found: dict[str, str] = {}
    for raw, inner in _map(key, item).items():
        name = raw.lower()
        if name in ("account", "subject"):
            found[name] = values.text(name, inner)
        else:
            report.refuse(raw, inner, frozenset())
    if len(found) < 2:
        raise BadValue("Expect an account name and a subject")
    return found["account"], found["subject"]


def _only_one(settings: dict[str, Any], key: str, subject: str) -> None:
    if "subject" in settings:
        other = "service" if settings["service"] else "stream"
        raise BadValue(f'Detected {key} "{subject}" but already saw a {other}')


def _subject(word: str) -> bytes:
    if not valid_subject(word.encode(), wildcards=True):
        raise BadValue(f'subject "{word}" is not a valid subject')
    return word.encode()


def _map(key: str, item: Item) -> Map:
    if not isinstance(item.value, dict):
        raise BadValue(f"Expected map to define {key}, got {type(item.value).__name__}")
    return item.value
