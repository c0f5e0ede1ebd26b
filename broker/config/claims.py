"""Claims of account and user JWTs, converted to our own options.

Owns: the names inside `nats` of a token: permissions, limits, exports and imports.
May not touch: signatures, clocks, connections.
Spec: NATS JWT claims; -1 means unlimited, an empty allow list means no restriction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.config.check_mappings import check_mapping
from broker.config.options import (
    ALWAYS,
    AccountClaims,
    AccountOptions,
    AccountStore,
    Export,
    Import,
    MappingDestination,
    Permissions,
    ResponseRules,
    SubjectMapping,
    SubjectRules,
)
from broker.credentials.jwt import Token
from broker.subjects import valid_subject
from broker.subjects.mapping import BadMapping

_SERVICE = ("service", 2)


class BadClaims(Exception):
    """The claims cannot be used; str() says why."""


def permissions_of(claims: Mapping[str, Any], words: Mapping[str, str]) -> Permissions | None:
    """None when nothing is restricted. `words` replace `{{templates}}`. Raises BadClaims."""
    publish = _rules(_map(claims, "pub"), words)
    subscribe = _rules(_map(claims, "sub"), words)
    given = claims.get("resp")
    responses = None
    if isinstance(given, dict):
        default = ResponseRules()
        responses = ResponseRules(
            _integer(given, "max", 0) or default.max_msgs,
            _integer(given, "ttl", 0) or default.expires_ns,
        )
    if publish is None and subscribe is None and responses is None:
        return None
    return Permissions(publish, subscribe, responses)


def account_options(token: Token) -> tuple[AccountOptions, AccountStore | None]:
    """Raises BadClaims."""
    limits = _map(token.claims, "limits")
    absent = -1 if token.version == 1 else 0
    options = AccountOptions(
        token.subject,
        max_connections=_integer(limits, "conn", absent),
        max_subscriptions=_integer(limits, "subs", absent),
        max_payload=_integer(limits, "payload", absent),
        exports=tuple(_export(one) for one in _list(token.claims, "exports")),
        imports=tuple(_import(one) for one in _list(token.claims, "imports")),
        mappings=tuple(_mapping(*one) for one in _map(token.claims, "mappings").items()),
    )
    return options, _store(limits)


def account_claims(token: Token) -> AccountClaims:
    """Raises BadClaims."""
    signing: dict[str, dict[str, Any] | None] = {token.subject: None}
    for one in token.claims.get("signing_keys") or ():
        if isinstance(one, str):
            signing[one] = None
        elif isinstance(one, dict) and isinstance(one.get("key"), str):
            signing[one["key"]] = _map(one, "template")
        else:
            raise BadClaims("a signing key is a key or a scope")
    revoked = _map(token.claims, "revocations")
    return AccountClaims(
        name=token.name,
        signing_keys=signing,
        revocations={key: _integer(revoked, key, 0) for key in revoked},
        bearer_allowed=not _map(token.claims, "limits").get("disallow_bearer", False),
        default_permissions=permissions_of(_map(token.claims, "default_permissions"), {}),
        expires=token.expires,
    )


def _store(limits: Mapping[str, Any]) -> AccountStore | None:
    if limits.get("tiered_limits"):
        raise BadClaims('not supported yet: "tiered_limits"')
    memory, storage = _integer(limits, "mem_storage", 0), _integer(limits, "disk_storage", 0)
    if not memory and not storage:
        return None
    return AccountStore(
        max_memory=memory,
        max_storage=storage,
        max_streams=_integer(limits, "streams", 0) or -1,
        max_consumers=_integer(limits, "consumer", 0) or -1,
        max_ack_pending=_integer(limits, "max_ack_pending", 0) or -1,
        memory_max_stream_bytes=_integer(limits, "mem_max_stream_bytes", 0) or -1,
        storage_max_stream_bytes=_integer(limits, "disk_max_stream_bytes", 0) or -1,
        max_bytes_required=bool(limits.get("max_bytes_required", False)),
    )


def _export(given: Any) -> Export:
    entry = _entry(given)
    # Activation tokens and account_token_position are not supported: such exports admit no account.
    closed = bool(entry.get("token_req") or entry.get("account_token_position"))
    threshold = _integer(entry, "response_threshold", 0)
    return Export(
        _subject(entry.get("subject")),
        service=entry.get("type") in _SERVICE,
        accounts=() if closed else None,
        many_answers=str(entry.get("response_type", "")).lower() in ("stream", "chunked"),
        threshold_ns=threshold or Export(b"").threshold_ns,
        allow_trace=bool(entry.get("allow_trace", False)),
    )


def _import(given: Any) -> Import:
    """`subject` is the exporter's if `local_subject` is set; else a service's own subject."""
    entry = _entry(given)
    service = entry.get("type") in _SERVICE
    subject, to = entry.get("subject"), entry.get("to")
    local = entry.get("local_subject")
    if local:
        there, here = subject, local
    elif service:
        there, here = to or subject, subject
    else:
        there, here = subject, f"{to}.{subject}" if to else subject
    return Import(
        account=str(entry.get("account", "")),
        subject=_subject(there),
        local=_subject(here),
        service=service,
        share=bool(entry.get("share", False)),
        allow_trace=bool(entry.get("allow_trace", False)),
    )


def _mapping(source: str, given: Any) -> SubjectMapping:
    entries = [_entry(one) for one in _list({source: given}, source)]
    rule = SubjectMapping(
        source,
        tuple(
            MappingDestination(
                str(one.get("subject", "")),
                _integer(one, "weight", 0) or ALWAYS,
                str(one.get("cluster", "")),
            )
            for one in entries
        ),
    )
    try:
        check_mapping(rule)
    except BadMapping as bad:
        raise BadClaims(str(bad)) from bad
    return rule


def _rules(given: Mapping[str, Any], words: Mapping[str, str]) -> SubjectRules | None:
    allow = tuple(_word(one, words) for one in _list(given, "allow"))
    deny = tuple(_word(one, words) for one in _list(given, "deny"))
    return SubjectRules(allow or None, deny) if allow or deny else None


def _word(text: Any, words: Mapping[str, str]) -> bytes:
    if not isinstance(text, str):
        raise BadClaims("a subject is a string")
    found: str = text
    for name, word in words.items():
        found = found.replace("{{" + name + "}}", word)
    if "{{" in found:  # a permission with an unknown template permits nothing
        raise BadClaims(f'"{found}" has a template that is not supported')
    subject = found.encode().partition(b" ")[0]
    if not valid_subject(subject, wildcards=True):
        raise BadClaims(f'subject "{found}" is not a valid subject')
    return found.encode()


def _subject(text: Any) -> bytes:
    """Mappings such as `a.$1` are accepted as subjects."""
    if not isinstance(text, str) or not valid_subject(text.encode(), wildcards=True):
        raise BadClaims(f'subject "{text}" is not a valid subject')
    return text.encode()


def _integer(given: Mapping[str, Any], key: str, absent: int) -> int:
    value = given.get(key, absent)
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadClaims(f'"{key}" is not a number')
    return value


def _map(given: Mapping[str, Any], key: str) -> dict[str, Any]:
    return _entry(given.get(key) or {})


def _entry(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadClaims("an object is wanted in the claims")
    return value


def _list(given: Mapping[str, Any], key: str) -> list[Any]:
    value = given.get(key) or []
    if not isinstance(value, list):
        raise BadClaims(f'"{key}" is not a list')
    return value
