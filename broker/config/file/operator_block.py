"""Operator mode in the configuration file: `operator` or `trusted_keys`, `resolver`, its preload.

Owns: reading these keys. trusted_accounts.py decides which accounts the operators signed.
May not touch: users; they present their JWT when they connect.
Spec: NATS server configuration, operator mode."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from broker.config.draft import Draft
from broker.config.file import values
from broker.config.file.parser import Item, Map
from broker.config.file.values import BadValue
from broker.config.options import SECOND, TlsOptions
from broker.credentials import jwt, nkeys
from broker.credentials.nkeys import KeyKind

_MEMORY = re.compile(r"\s*mem(ory)?\s*", re.IGNORECASE)
_URL = re.compile(r"\s*url\((.*)\)\s*", re.IGNORECASE)
CACHE_TTL_NS = 3600 * SECOND


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


def apply_trusted_keys(draft: Draft, key: str, item: Item) -> None:
    """A trusted key is an operator of which only the public key is known."""
    for public in values.texts(key, item):
        if not nkeys.is_public(public, KeyKind.OPERATOR):
            raise BadValue(f'trust key "{public}" required to be a valid public operator nkey')
        draft.trusted_keys.append(jwt.Token("operator", 2, public, public, "", 0, 0, 0, claims={}))


def apply_resolver(draft: Draft, key: str, item: Item) -> None:
    if isinstance(item.value, dict):
        draft.resolver = _directory(item.value)
        return
    url = _URL.fullmatch(item.value) if isinstance(item.value, str) else None
    if url is not None:
        draft.resolver = _from_url(url[1].strip().strip("\"'"))
        return
    if not isinstance(item.value, str):
        raise BadValue("error parsing operator resolver, wrong type")
    if not _MEMORY.fullmatch(item.value):
        raise BadValue(
            'error parsing account resolver, should be MEM or  URL("url") or a map containing '
            "dir and type state=[FULL|CACHE])"
        )
    draft.resolver = {}


def _from_url(url: str) -> dict[str, Any]:
    """What is fetched is kept as long as the process lives."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise BadValue(f'account resolver url "{url}" is not one of http or https')
    place = Path(tempfile.gettempdir()) / f"jetraft-accounts-{os.getpid()}"
    return {"directory": str(place), "url": url if url.endswith("/") else f"{url}/"}


def apply_resolver_tls(draft: Draft, settings: dict[str, Any]) -> None:
    """How to reach the server of `URL(...)`."""
    tls = draft.resolver_tls = TlsOptions(**settings)
    if bool(tls.cert_file) != bool(tls.key_file):
        missing = "key_file" if tls.cert_file else "cert_file"
        raise BadValue(f"missing '{missing}' in TLS configuration")
    for name in filter(None, (tls.ca_file, tls.cert_file, tls.key_file)):
        if not Path(name).is_file():
            raise BadValue(f"open {name}: no such file or directory")


_DIRECTORY: dict[str, tuple[str, Callable[[str, Item], object]]] = {
    "type": ("type", values.text),
    "dir": ("directory", values.text),
    "allow_delete": ("allow_delete", values.boolean),
    "limit": ("limit", values.integer),
    "interval": ("interval_ns", values.duration),
    "timeout": ("timeout_ns", values.duration),
    "ttl": ("ttl_ns", values.duration),
}


def _directory(block: Map) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for raw, item in block.items():
        if raw.lower() not in _DIRECTORY:
            raise BadValue(f'not supported: "{raw}" of a resolver')
        name, read = _DIRECTORY[raw.lower()]
        settings[name] = read(raw.lower(), item)
    kind = str(settings.pop("type", "")).lower()
    if kind not in ("full", "cache"):
        raise BadValue(f'account resolver type "{kind}" is neither full nor cache')
    if kind == "cache":
        settings = {"cache": True, "ttl_ns": CACHE_TTL_NS, **settings}
    elif "ttl_ns" in settings:
        raise BadValue("ttl is not for a resolver of type full")
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
