"""Authorization callout: the request to the user's own service, and the meaning of its answer.

Owns: the claims of a request, and the checks of an answer.
May not touch: messages, clocks (now is an argument), the encoding of JWTs (broker.credentials).
Spec: NATS authorization callout (ADR-26). The answer must be signed by the configured issuer, for
this server and this request; the user in it belongs to the account that its audience names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from msgspec.structs import replace

from broker.accounts import tokens
from broker.accounts.identity import Credentials, Identity
from broker.accounts.tokens import TokenRefused
from broker.config.options import AccountClaims, CalloutOptions, Permissions, SubjectRules
from broker.credentials import jwt

REQUEST_SUBJECT = b"$SYS.REQ.USER.AUTH"
AUDIENCE = "nats-authorization-request"


def request_claims(
    callout: CalloutOptions,
    given: Credentials,
    *,
    server: dict[str, Any],
    client: dict[str, Any],
    connect: dict[str, Any],
    tls: dict[str, Any] | None,
    user_key: str,
    now: int,
    timeout_s: float,
) -> dict[str, Any]:
    """The documents `server`, `client`, `connect` and `tls` are copied into the request; `user_key`
    is used for this request only."""
    opts = {
        "jwt": given.jwt, "nkey": given.nkey, "sig": given.signature,
        "auth_token": given.token, "user": given.user, "pass": given.password,
    }  # fmt: skip
    body: dict[str, Any] = {
        "server_id": server,
        "user_nkey": user_key,
        "client_info": client | ({"nonce": given.nonce} if given.nonce else {}),
        "connect_opts": {key: value for key, value in opts.items() if value} | connect,
        "type": "authorization_request",
        "version": 2,
    }
    if tls is not None:
        body["client_tls"] = tls
    return {
        "aud": AUDIENCE,
        "exp": now + max(1, round(timeout_s)),
        "iat": now,
        "iss": server["id"],
        "sub": callout.issuer,
        "nats": body,
    }


def judge(
    callout: CalloutOptions,
    given: Credentials,
    answer: str,
    *,
    server_id: str,
    user_key: str,
    has_account: Callable[[str], bool],
    accounts: Mapping[str, AccountClaims] | None = None,
    now: float,
) -> Identity:
    """The identity of the client, according to the answer. `accounts`: those of operator mode.
    Raises TokenRefused."""
    signers = {callout.issuer}
    if accounts is not None and callout.account in accounts:
        signers |= accounts[callout.account].signing_keys.keys()
    try:
        user = _user_in(signers, jwt.decode(answer), server_id, user_key, now)
        if user.kind != "user" or user.subject != user_key:
            raise TokenRefused(f'Expected authorized user of "{user_key}"')
        if accounts is not None:
            return _kept_apart(callout, tokens.placed(accounts, user, given, callout, now=now))
        if user.issuer != callout.issuer:
            raise TokenRefused(f'Wrong issuer "{user.issuer}" of the user')
        if not has_account(user.audience):
            raise TokenRefused(
                f'No valid account "{user.audience}" for auth callout response on account '
                f'"{callout.account}": account missing'
            )
    except jwt.BadToken as bad:
        raise TokenRefused(str(bad)) from bad
    return _kept_apart(callout, tokens.identity_of(user, given, user.audience, now=now))


def _kept_apart(callout: CalloutOptions, identity: Identity) -> Identity:
    return _unable_to_judge(identity) if identity.account == callout.account else identity


def _user_in(
    signers: Collection[str], response: jwt.Token, server_id: str, user_key: str, now: float
) -> jwt.Token:
    """The user in an answer that is for this request. Raises TokenRefused and BadToken."""
    if response.kind != "authorization_response" or response.subject != user_key:
        raise TokenRefused("the answer belongs to another request")
    if response.issuer not in signers:
        raise TokenRefused("Auth callout signing key is unknown")
    if response.audience != server_id:
        raise TokenRefused("the answer is for another server")
    if response.expires and response.expires <= now:
        raise TokenRefused("the answer has expired")
    error = response.claims.get("error")
    if error:
        raise TokenRefused(f"Auth callout service returned an error: {error}")
    return jwt.decode(str(response.claims.get("jwt", "")))


def _unable_to_judge(identity: Identity) -> Identity:
    """Only the service itself may receive the requests: they contain secrets of other clients."""
    rules = identity.permissions or Permissions()
    subscribe = rules.subscribe or SubjectRules()
    closed = replace(subscribe, deny=(*subscribe.deny, REQUEST_SUBJECT))
    return identity.with_permissions(replace(rules, subscribe=closed))
