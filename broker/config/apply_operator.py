"""Operator mode: the operator, the resolver and the accounts that are preloaded.

Owns: the reading of these keys, and whether accounts are signed by the operator.
May not touch: users; they bring their tokens when they connect.
Spec: core contract 3.6."""

from __future__ import annotations

import re
from pathlib import Path

from broker.config import values
from broker.config.claims import BadClaims, account_claims, account_options
from broker.config.draft import Draft
from broker.config.options import AccountClaims
from broker.config.parser import Item
from broker.config.values import BadValue
from broker.credentials import jwt, nkeys
from broker.credentials.nkeys import KeyKind

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
    if isinstance(item.value, dict) or (isinstance(item.value, str) and _URL.match(item.value)):
        raise BadValue('not supported yet: resolvers other than "MEMORY"')
    if not isinstance(item.value, str):
        raise BadValue("error parsing operator resolver, wrong type")
    if not _MEMORY.fullmatch(item.value):
        raise BadValue(
            'error parsing account resolver, should be MEM or  URL("url") or a map containing '
            "dir and type state=[FULL|CACHE])"
        )
    draft.resolver = True


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


def settle(draft: Draft) -> dict[str, AccountClaims]:
    """The accounts that the operators vouch for, in the draft. Raises BadClaims."""
    trusted: set[str] = set()
    for operator in draft.operators:
        strict = operator.claims.get("strict_signing_key_usage", False)
        keys = operator.claims.get("signing_keys") or []
        for signer in [*keys, *([] if strict else [operator.subject])]:
            if nkeys.is_public(signer, KeyKind.OPERATOR):
                trusted.add(signer)
        system = operator.claims.get("system_account")
        if system:
            draft.top.setdefault("system_account", system)
    found: dict[str, AccountClaims] = {}
    for public, token in draft.preloaded.items():
        if token.issuer not in trusted:
            draft.warnings.append(f"Account [{public}] is not signed by a trusted operator")
            continue
        try:
            found[public] = account_claims(token)
            options, store = account_options(token)
        except BadClaims as bad:
            raise BadClaims(f"account {public}: {bad}") from bad
        draft.accounts.append(options)
        if store is not None:
            draft.account_stores[public] = store
    return found
