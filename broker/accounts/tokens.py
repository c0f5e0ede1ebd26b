"""User JWTs: the check of the chain from operator to account to user.

Owns: the checks of a user JWT against its account, and when it expires.
May not touch: sockets, clocks (now is an argument), the encoding of JWTs (broker.credentials).
Spec: NATS JWT authentication. A token with malformed claims is refused, even if it is signed."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from broker.accounts.identity import Credentials, Identity
from broker.config.claims import BadClaims, Words, permissions_of, tags_of
from broker.config.options import AccountClaims, CalloutOptions
from broker.credentials import jwt, nkeys

# Claims of the wrong type raise one of these; such a JWT is refused even if its signature is good.
_DAMAGE = (TypeError, KeyError, AttributeError, ArithmeticError)
USER_EXPIRED = "User Authentication Expired"
ACCOUNT_EXPIRED = "Account Authentication Expired"


class TokenRefused(Exception):
    """str() goes to the log; the client only sees an authorization violation."""


def identify(accounts: Mapping[str, AccountClaims], given: Credentials, *, now: float) -> Identity:
    """Raises TokenRefused."""
    try:
        token = jwt.decode(given.jwt)
        if token.kind != "user":
            raise TokenRefused("not the token of a user")
        name = token.claims.get("issuer_account") or token.issuer
        account = accounts.get(name)
        if account is None:
            raise TokenRefused("account unknown")
        if token.issuer not in account.signing_keys:
            raise TokenRefused("not signed by a key of its account")
        scope = account.signing_keys[token.issuer]
        claims = token.claims if scope is None else {**scope, "issuer_account": name}
        _check_times(token, account, now)
        _check_revoked(token, account)
        _check_holder(token, claims, account, given)
        _check_place(claims, given)
        return _identity(token, claims, account, name, now, scoped=scope is not None)
    except (jwt.BadToken, BadClaims, ValueError, *_DAMAGE) as bad:
        raise TokenRefused(str(bad)) from bad


def placed(
    accounts: Mapping[str, AccountClaims],
    token: jwt.Token,
    given: Credentials,
    callout: CalloutOptions,
    *,
    now: float,
) -> Identity:
    """The user that an authorization service of an account has created. Raises TokenRefused."""
    name = str(token.claims.get("issuer_account") or token.issuer)
    account = accounts.get(name)
    if account is None or token.issuer not in account.signing_keys:
        raise TokenRefused(f'No valid account "{name}" for auth callout response')
    if name != callout.account and not {name, "*"} & {*callout.allowed_accounts}:
        raise TokenRefused(f'Account "{name}" not permitted as valid account option')
    scope = account.signing_keys[token.issuer]
    claims = token.claims if scope is None else {**scope, "issuer_account": name}
    try:
        _check_times(token, account, now)
        _check_place(claims, given)
        return _identity(token, claims, account, name, now, scoped=scope is not None)
    except (BadClaims, ValueError, *_DAMAGE) as bad:
        raise TokenRefused(str(bad)) from bad


def identity_of(token: jwt.Token, given: Credentials, account: str, *, now: float) -> Identity:
    """The user of a token that the caller has verified, in that account. Raises TokenRefused."""
    unrestricted = AccountClaims(account, signing_keys={}, revocations={})
    try:
        _check_times(token, unrestricted, now)
        _check_place(token.claims, given)
        found = _identity(token, token.claims, unrestricted, account, now)
    except (BadClaims, ValueError, *_DAMAGE) as bad:
        raise TokenRefused(str(bad)) from bad
    return replace(found, user=token.name or token.subject)


def _check_times(token: jwt.Token, account: AccountClaims, now: float) -> None:
    if token.expires and token.expires <= now:
        raise TokenRefused("user token expired")
    if token.not_before > now:
        raise TokenRefused("user token not valid yet")
    if account.expires and account.expires <= now:
        raise TokenRefused("account token expired")


def _check_revoked(token: jwt.Token, account: AccountClaims) -> None:
    for key in (token.subject, "*"):
        if account.revocations.get(key, -1) >= token.issued_at:
            raise TokenRefused("user revoked")


def _check_holder(
    token: jwt.Token, claims: Mapping[str, Any], account: AccountClaims, given: Credentials
) -> None:
    """A bearer token needs no proof; any other token needs a signature of the nonce."""
    if claims.get("bearer_token") is True:
        if not account.bearer_allowed:
            raise TokenRefused("account allows no bearer tokens")
        return
    signed = nkeys.signature(given.signature)
    if not given.nonce or not nkeys.verify(token.subject, given.nonce.encode(), signed):
        raise TokenRefused("signature not verified")


def _check_place(claims: Mapping[str, Any], given: Credentials) -> None:
    types = claims.get("allowed_connection_types")
    if types and given.connection_type not in {str(one).upper() for one in types}:
        raise TokenRefused("connection type not allowed")
    sources = claims.get("src")
    if sources:
        words = sources.split(",") if isinstance(sources, str) else sources  # version 1, version 2
        networks = [ipaddress.ip_network(word.strip(), strict=False) for word in words]
        if not any(ipaddress.ip_address(given.host) in network for network in networks):
            raise TokenRefused("address not allowed")


def _words(token: jwt.Token, account: AccountClaims, name: str) -> Words:
    """The values of the templates in the permissions of a scoped signing key."""
    fixed = {
        "name()": token.name,
        "subject()": token.subject,
        "account-name()": account.name,
        "account-subject()": name,
    }
    tags = {"tag": tags_of(token.claims), "account-tag": account.tags}

    def values(template: str) -> list[str]:
        if template in fixed:
            return [fixed[template]]
        kind, bracket, rest = template.partition("(")
        if kind not in tags or not bracket or not rest.endswith(")"):
            return []
        prefix = f"{rest[:-1]}:"
        return [one[len(prefix) :] for one in tags[kind] if one.startswith(prefix)]

    return values


def _identity(
    token: jwt.Token,
    claims: Mapping[str, Any],
    account: AccountClaims,
    name: str,
    now: float,
    *,
    scoped: bool = False,
) -> Identity:
    words = _words(token, account, name) if scoped else None
    permissions = permissions_of(claims, words) or account.default_permissions
    ends: list[tuple[float, str]] = [
        (token.expires, USER_EXPIRED),
        (account.expires, ACCOUNT_EXPIRED),
    ]
    ends.append((_end_of_shift(claims, now), USER_EXPIRED))
    expires, farewell = min((end for end in ends if end[0]), default=(0, ""))
    absent = -1 if token.version == 1 else 0
    return Identity(
        token.subject,
        name,
        permissions,
        max_subscriptions=int(claims.get("subs", absent)),
        max_payload=int(claims.get("payload", absent)),
        expires=expires,
        farewell=farewell,
        issuer=token.issuer,
        account_name=account.name,
        tags=tags_of(token.claims),
        name=token.name,
        bearer=claims.get("bearer_token") is True,
    )


def _end_of_shift(claims: Mapping[str, Any], now: float) -> float:
    """When the current allowed time range of the user ends; 0 = no time restriction."""
    times = claims.get("times")
    if not times:
        return 0
    here = datetime.fromtimestamp(now, ZoneInfo(claims.get("times_location") or "UTC"))
    for entry in times:
        start = datetime.combine(here, _clock(entry["start"]), here.tzinfo)
        end = datetime.combine(here, _clock(entry["end"]), here.tzinfo)
        if start > end:
            end += timedelta(days=1)
        if start < here < end:
            return end.timestamp()
    raise TokenRefused("not at this time of day")


def _clock(text: str) -> Any:
    return datetime.strptime(text, "%H:%M:%S").time()  # noqa: DTZ007 - a time of day
