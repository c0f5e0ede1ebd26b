"""Operator mode in the configuration file: `operator`, `resolver` and `resolver_preload`.

Owns: reading these keys. trusted_accounts.py decides which accounts the operators signed.
May not touch: users; they present their JWT when they connect.
Spec: NATS server configuration, operator mode."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from broker.config.draft import Draft
from broker.config.file import values
from broker.config.file.parser import Item, Map
from broker.config.file.values import BadValue
from broker.credentials import jwt

_MEMORY = re.compile(r"\s*mem(ory)?\s*", re.IGNORECASE)
_URL = re.compile(r"\s*url\(", re.IGNORECASE)


def apply_operator(draft: Draft, key: str, item: Item) -> None:
    if not isinstance(item.value, str | list):
        raise BadValue("error parsing operators: unsupported type")
    for word in values.texts(key, item):
        if word.startswith("eyJ"):
            text = word
        else:
            try:
                text = jwt.inside(Path(word).read_text())
            except (OSError, UnicodeDecodeError) as error:
                reason = getattr(error, "strerror", None) or str(error)
                raise BadValue(
                    f"error parsing operator JWT: open {word}: {reason.lower()}"
                ) from error
        try:
            token = jwt.decode(text)
        except jwt.BadToken as bad:
            raise BadValue(f"error parsing operator JWT: {bad}") from bad
        if token.kind != "operator":
            raise BadValue("error parsing operator JWT: not operator claim")
        draft.operators.append(token)


def apply_resolver(draft: Draft, key: str, item: Item) -> None:
    if isinstance(item.value, dict):
        draft.resolver = _directory(item.value)
        return
    if isinstance(item.value, str) and _URL.match(item.value):
        raise BadValue('not supported yet: resolvers other than "MEMORY" and "full"')
    if not isinstance(item.value, str):
        raise BadValue("error parsing operator resolver, wrong type")
    if not _MEMORY.fullmatch(item.value):
        raise BadValue(
            'error parsing account resolver, should be MEM or  URL("url") or a map containing '
            "dir and type state=[FULL|CACHE])"
        )
    draft.resolver = {}


def _directory(block: Map) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    kind = ""
    for raw, item in block.items():
        key = raw.lower()
        if key == "type":
            kind = values.text(key, item).lower()
        elif key == "dir":
            settings["directory"] = values.text(key, item)
        elif key == "allow_delete":
            settings[key] = values.boolean(key, item)
        elif key == "limit":
            settings[key] = values.integer(key, item)
        elif key == "interval":
            settings["interval_ns"] = values.duration(key, item)
        elif key == "timeout":
            values.duration(key, item)  # of lookups elsewhere: every account is stored here
        else:
            raise BadValue(f'not supported: "{raw}" of a resolver')
    if kind != "full":
        raise BadValue(f'not supported yet: resolver type "{kind}"; use "full"')
    if not settings.get("directory"):
        raise BadValue("dir has no value and needs to point to a directory")
    return settings


def apply_preload(draft: Draft, key: str, item: Item) -> None:
    if not isinstance(item.value, dict):
        raise BadValue("preload should be a map of account_public_key:account_jwt")
    for public, inner in item.value.items():
        text = inner.value
        if not isinstance(text, str):
            raise BadValue("preload map value should be a string JWT")
        try:
            token = jwt.decode(text)
        except jwt.BadToken as bad:
            raise BadValue("invalid account JWT") from bad
        if token.kind != "account" or token.subject != public:
            raise BadValue(f"the JWT for {public} is not of this account")
        draft.preloaded[public] = token
        draft.preload[public] = text
