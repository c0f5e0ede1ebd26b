"""The `auth_callout` block: the service that decides about clients.

Owns: reading that block.
May not touch: whether its account and users exist (draft.py).
Spec: NATS server configuration, authorization callout."""

from __future__ import annotations

from typing import Any

from broker.config.file import values
from broker.config.file.parser import Item
from broker.config.file.values import BadValue
from broker.config.options import CalloutOptions
from broker.credentials import nkeys


def read_callout(block: Item) -> CalloutOptions:
    if not isinstance(block.value, dict):
        raise BadValue(f"Expected authorization callout to be a map/struct, got {block.value}")
    settings: dict[str, Any] = {}
    for raw, item in block.value.items():
        key = raw.lower()
        if key == "issuer":
            settings["issuer"] = _issuer(values.text(key, item))
        elif key in ("account", "acc"):
            settings["account"] = values.text(key, item)
        elif key in ("auth_users", "users"):
            settings["users"] = tuple(values.texts(key, item))
        elif key in ("xkey", "key"):
            settings["xkey"] = _xkey(values.text(key, item))
        else:
            raise BadValue(f'Unknown field "{raw}" parsing authorization callout')
    if "issuer" not in settings:
        raise BadValue("Authorization callouts require an issuer to be specified")
    if not settings.get("users"):
        raise BadValue("Authorization callouts require authorized users to be specified")
    return CalloutOptions(**settings)


def _issuer(text: str) -> str:
    if not nkeys.is_public(text, nkeys.KeyKind.ACCOUNT):
        raise BadValue(f'Expected callout user to be a valid public account nkey, got "{text}"')
    return text


def _xkey(text: str) -> str:
    if not nkeys.is_public(text, nkeys.KeyKind.CURVE):
        raise BadValue(f'Expected callout xkey to be a valid public xkey, got "{text}"')
    return text
