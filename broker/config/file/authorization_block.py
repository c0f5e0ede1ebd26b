"""The `authorization` block: token, user, users and their permissions.

Owns: reading that block.
May not touch: how credentials are checked (broker.accounts).
Spec: NATS server configuration, authorization."""

from __future__ import annotations

from typing import Any

from broker.config.file import unsupported_keys as known
from broker.config.file import values
from broker.config.file.callout_block import read_callout
from broker.config.file.parser import Item, Map
from broker.config.file.report import ConfigReport
from broker.config.file.values import BadValue
from broker.config.options import Permissions, ResponseRules, SubjectRules, User
from broker.credentials import nkeys
from broker.subjects import valid_subject

CONNECTION_TYPES = frozenset(
    ["STANDARD", "WEBSOCKET", "LEAFNODE", "LEAFNODE_WS", "MQTT", "MQTT_WS", "IN_PROCESS"]
)
_PERMISSIONS = ("permission", "permissions", "authorization")


def apply_authorization(report: ConfigReport, settings: dict[str, Any], block: Map) -> None:
    for raw, item in block.items():
        key = raw.lower()
        with report.at(item):
            if key in ("user", "username"):
                settings["user"] = values.text(key, item)
            elif key in ("pass", "password"):
                settings["password"] = values.text(key, item)
            elif key == "token":
                settings["token"] = values.text(key, item)
            elif key == "timeout":
                settings["timeout_ns"] = values.duration(key, item)
            elif key == "users":
                settings["users"] = read_users(report, item)
            elif key in ("default_permissions", *_PERMISSIONS):
                settings["default_permissions"] = permissions(_map(key, item))
            elif key == "auth_callout":
                settings["callout"] = read_callout(item)
            else:
                report.refuse(raw, item, known.AUTHORIZATION)


def read_users(report: ConfigReport, item: Item) -> tuple[User, ...]:
    if not isinstance(item.value, list):
        raise BadValue("Expected users field to be an array")
    found: list[User] = []
    for entry in item.value:
        with report.at(entry):
            found.append(_user(report, _map("user", entry)))
    return tuple(found)


def _user(report: ConfigReport, block: Map) -> User:
    settings: dict[str, Any] = {}
    for raw, item in block.items():
        key = raw.lower()
        if key in ("user", "username"):
            settings["name"] = values.text(key, item)
        elif key in ("pass", "password"):
            settings["password"] = values.text(key, item)
        elif key in _PERMISSIONS:
            settings["permissions"] = permissions(_map(key, item))
        elif key == "nkey":
            settings["nkey"] = values.text(key, item)
        elif key in ("allowed_connection_types", "connection_types", "clients"):
            settings["connection_types"] = _connection_types(key, item)
        else:
            report.refuse(raw, item, known.USER)
    public = settings.pop("nkey", "")
    if public:
        settings |= _nkey_user(public, settings)
    if not settings.get("name"):
        raise BadValue("User entry requires a user")
    return User(**settings)


def _nkey_user(public: str, settings: dict[str, Any]) -> dict[str, Any]:
    if not nkeys.is_public(public, nkeys.KeyKind.USER):
        raise BadValue("Not a valid public nkey for a user")
    if settings.get("name") or settings.get("password"):
        raise BadValue("Nkey users do not take usernames or passwords")
    return {"name": public, "nkey": True}


def _connection_types(key: str, item: Item) -> frozenset[str]:
    found = frozenset(word.upper() for word in values.texts(key, item))
    unknown = sorted(found - CONNECTION_TYPES)
    if unknown:
        listed = " ".join(f'"{word}"' for word in unknown)
        raise BadValue(f"invalid connection types [{listed}]")
    return found


def permissions(block: Map) -> Permissions:
    """Raises BadValue."""
    settings: dict[str, Any] = {}
    for raw, item in block.items():
        key = raw.lower()
        if key in ("publish", "pub", "import"):
            settings["publish"] = _rules(key, item, queues=False)
        elif key in ("subscribe", "sub", "export"):
            settings["subscribe"] = _rules(key, item, queues=True)
        elif key in ("allow_responses", "allow_response"):
            settings["responses"] = _responses(key, item)
        else:
            raise BadValue(f'Unknown field "{raw}" parsing permissions')
    return Permissions(**settings)


def _rules(key: str, item: Item, *, queues: bool) -> SubjectRules | None:
    if not isinstance(item.value, dict):
        return SubjectRules(allow=_subjects(key, item, queues=queues))
    settings: dict[str, tuple[bytes, ...]] = {}
    for raw, inner in item.value.items():
        name = raw.lower()
        if name not in ("allow", "deny"):
            raise BadValue(
                f'Unknown field name "{raw}" parsing subject permissions, only "allow" '
                'or "deny" are permitted'
            )
        settings[name] = _subjects(name, inner, queues=queues)
    return SubjectRules(allow=settings.get("allow"), deny=settings.get("deny", ()))


def _subjects(key: str, item: Item, *, queues: bool) -> tuple[bytes, ...]:
    found: list[bytes] = []
    for word in values.texts(key, item):
        subject, blank, queue = word.encode().partition(b" ")
        bad_queue = bool(blank) and not (queues and queue.strip())
        if bad_queue or not valid_subject(subject, wildcards=True):
            raise BadValue(f'subject "{word}" is not a valid subject')
        found.append(word.encode())
    return tuple(found)


def _responses(key: str, item: Item) -> ResponseRules | None:
    if isinstance(item.value, bool):
        return ResponseRules() if item.value else None
    settings: dict[str, int] = {}
    for raw, inner in _map(key, item).items():
        name = raw.lower()
        if name in ("max", "max_msgs", "max_messages", "max_responses"):
            settings["max_msgs"] = values.integer(name, inner) or 1
        elif name in ("expires", "expiration", "ttl"):
            settings["expires_ns"] = values.duration(name, inner)
        else:
            raise BadValue(f'Unknown field "{raw}" parsing permissions')
    return ResponseRules(**settings)


def _map(key: str, item: Item) -> Map:
    if not isinstance(item.value, dict):
        raise BadValue(f"Expected map to define {key}, got {type(item.value).__name__}")
    return item.value
