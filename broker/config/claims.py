"""Claims of account and user JWTs, converted to our own options.

Owns: the names inside `nats` of a token: permissions, limits, exports and imports.
May not touch: signatures, clocks, connections.
Spec: NATS JWT claims; -1 means unlimited, an empty allow list means no restriction."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from broker.config.check_mappings import check_mapping
from broker.config.options import (
    ALWAYS,
    AccountClaims,
    AccountOptions,
    AccountStore,
    Activation,
    CalloutOptions,
    Export,
    Import,
    MappingDestination,
    Permissions,
    ResponseRules,
    ServiceLatency,
    SubjectMapping,
    SubjectRules,
)
from broker.credentials.jwt import BadToken, Token, decode, inside
from broker.subjects import has_wildcard, valid_subject
from broker.subjects.mapping import BadMapping

_SERVICE = ("service", 2)
_TEMPLATE = re.compile(r"\{\{[^}]*\}\}")
SUBJECTS_MAX = 1024  # of one entry with templates
Words = Callable[[str], Sequence[str]]  # the values of a template such as `tag(dept)`


class BadClaims(Exception):
    """The claims cannot be used; str() says why."""


def permissions_of(claims: Mapping[str, Any], words: Words | None = None) -> Permissions | None:
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
        signing_keys=tuple(account_claims(token).signing_keys),
        label=token.name,
        **_trace(_map(token.claims, "trace")),
    )
    return options, _store(limits)


def _trace(given: Mapping[str, Any]) -> dict[str, Any]:
    """Where traces of messages with a sampled `traceparent` go."""
    if not given:
        return {}
    subject = _subject(given.get("dest"))
    if has_wildcard(subject):
        raise BadClaims("the destination of traces has wildcards")
    sampling = _integer(given, "sampling", 0) or ALWAYS
    if not 0 < sampling <= ALWAYS:
        raise BadClaims(f"trace sampling of {sampling} %")
    return {"trace_dest": subject, "trace_sampling": sampling}


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
        default_permissions=permissions_of(_map(token.claims, "default_permissions")),
        expires=token.expires,
        tags=tags_of(token.claims),
        callout=_callout(token),
    )


def tags_of(claims: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(one).lower() for one in _list(claims, "tags"))


def _callout(token: Token) -> CalloutOptions | None:
    given = _map(token.claims, "authorization")
    users = tuple(str(one) for one in _list(given, "auth_users"))
    if not users:
        return None
    return CalloutOptions(
        token.subject,
        users,
        account=token.subject,
        xkey=str(given.get("xkey") or ""),
        allowed_accounts=tuple(str(one) for one in _list(given, "allowed_accounts")),
    )


def _store(limits: Mapping[str, Any]) -> AccountStore | None:
    tiers = _map(limits, "tiered_limits")
    if tiers:
        if any(limits.get(name) for name in ("mem_storage", "disk_storage")):
            raise BadClaims("JetStream Limits and tiered JetStream Limits are mutually exclusive")
        granted = {name: _tier(_map(tiers, name)) for name in tiers}
        return AccountStore(max_memory=0, max_storage=0, tiers=granted)
    memory, storage = _integer(limits, "mem_storage", 0), _integer(limits, "disk_storage", 0)
    return _tier(limits) if memory or storage else None


def _tier(limits: Mapping[str, Any]) -> AccountStore:
    return AccountStore(
        max_memory=_integer(limits, "mem_storage", 0),
        max_storage=_integer(limits, "disk_storage", 0),
        max_streams=_integer(limits, "streams", 0) or -1,
        max_consumers=_integer(limits, "consumer", 0) or -1,
        max_ack_pending=_integer(limits, "max_ack_pending", 0) or -1,
        memory_max_stream_bytes=_integer(limits, "mem_max_stream_bytes", 0) or -1,
        storage_max_stream_bytes=_integer(limits, "disk_max_stream_bytes", 0) or -1,
        max_bytes_required=bool(limits.get("max_bytes_required", False)),
    )


def _export(given: Any) -> Export:
    entry = _entry(given)
    revoked = _map(entry, "revocations")
    threshold = _integer(entry, "response_threshold", 0)
    return Export(
        _subject(entry.get("subject")),
        service=entry.get("type") in _SERVICE,
        many_answers=str(entry.get("response_type", "")).lower() in ("stream", "chunked"),
        threshold_ns=threshold or Export(b"").threshold_ns,
        allow_trace=bool(entry.get("allow_trace", False)),
        token_required=bool(entry.get("token_req", False)),
        account_token_position=_integer(entry, "account_token_position", 0),
        revocations=tuple((key, _integer(revoked, key, 0)) for key in sorted(revoked)),
        latency=_latency(_map(entry, "service_latency")),
    )


def _latency(given: Mapping[str, Any]) -> ServiceLatency | None:
    if not given:
        return None
    sampling = given.get("sampling", 0)
    if str(sampling).lower() == "headers":
        sampling = 0
    elif not isinstance(sampling, int) or not 0 < sampling <= ALWAYS:
        raise BadClaims(f"latency sampling of {sampling} %")
    return ServiceLatency(_subject(given.get("results")), sampling)


def _activation(text: Any) -> Activation | None:
    """None: no token, or one that cannot be read; an import that needs one is dropped."""
    try:
        token = decode(inside(text)) if isinstance(text, str) and text else None
    except BadToken:
        return None
    if token is None or token.kind != "activation":
        return None
    return Activation(
        issuer=token.issuer,
        exporter=str(token.claims.get("issuer_account") or token.issuer),
        importer=token.subject,
        subject=_subject(token.claims.get("subject")),
        service=token.claims.get("kind", token.claims.get("type")) in _SERVICE,
        issued_at=token.issued_at,
        expires=token.expires,
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
        activation=_activation(entry.get("token")),
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


def _rules(given: Mapping[str, Any], words: Words | None) -> SubjectRules | None:
    allow, deny = _list(given, "allow"), _list(given, "deny")
    if not allow and not deny:
        return None
    allowed = [made for one in allow for made in _words(one, words, strict=False)]
    denied = [made for one in deny for made in _words(one, words, strict=True)]
    if allow and not allowed:  # no template had a value: nothing is allowed
        denied.append(b">")
    return SubjectRules(tuple(allowed) or None, tuple(denied))


def _words(text: Any, words: Words | None, *, strict: bool) -> list[bytes]:
    """The subjects that the templates of an entry make of it: one for each value of a tag. One that
    is not valid is left out of an allow list; in a deny list it is an error."""
    if not isinstance(text, str):
        raise BadClaims("a subject is a string")
    made = [text]
    for template in sorted(set(_TEMPLATE.findall(text))) if words is not None else ():
        values = words(template[2:-2].strip().lower()) if words is not None else ()
        if not values and strict:
            raise BadClaims(f'"{text}": {template} is not defined')
        made = [one.replace(template, value) for one in made for value in values]
    if len(made) > SUBJECTS_MAX:
        raise BadClaims(f'"{text}" stands for too many subjects')
    valid = [one for one in made if valid_subject(one.encode().partition(b" ")[0], wildcards=True)]
    if len(valid) < len(made) and (strict or words is None or "{{" not in text):
        raise BadClaims(f'subject "{text}" is not a valid subject')
    return [one.encode() for one in valid]


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
