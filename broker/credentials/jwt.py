"""JWTs of operators, accounts and users.

Owns: the three parts of a token, the signature check, and the fields that all kinds share.
May not touch: clocks, trust: a decoded token is only known to be signed by the issuer it names.
Spec: NATS JWT; version 1 signs the payload, version 2 the header and the payload."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable
from typing import Any

import msgspec

from broker.credentials import nkeys
from broker.credentials.nkeys import KeyKind

_HEADER = b'{"typ":"JWT","alg":"ed25519-nkey"}'
ALGORITHMS = {"ed25519": 1, "ed25519-nkey": 2}
# Kinds of keys allowed as `iss` and `sub`, by kind of token.
ISSUERS = {
    "operator": KeyKind.OPERATOR,
    "account": KeyKind.OPERATOR,
    "user": KeyKind.ACCOUNT,
    "authorization_response": KeyKind.ACCOUNT,
    "activation": KeyKind.ACCOUNT,
    "generic": KeyKind.OPERATOR,
}
SUBJECTS = {
    "operator": KeyKind.OPERATOR,
    "account": KeyKind.ACCOUNT,
    "user": KeyKind.USER,
    "authorization_response": KeyKind.USER,
    "activation": KeyKind.ACCOUNT,
    "generic": KeyKind.OPERATOR,
}


class BadToken(Exception):
    """Not a token, or a bad signature; str() says why."""


class Token(msgspec.Struct, frozen=True):
    """Times are seconds since 1970, 0 = none."""

    kind: str
    version: int
    issuer: str
    subject: str
    name: str
    issued_at: int
    expires: int
    not_before: int
    claims: dict[str, Any]  # the `nats` part
    audience: str = ""


class _Header(msgspec.Struct):
    typ: str = ""
    alg: str = ""


class _Payload(msgspec.Struct):
    iss: str = ""
    sub: str = ""
    name: str = ""
    iat: int = 0
    exp: int = 0
    nbf: int = 0
    aud: str = ""
    type: str = ""
    nats: dict[str, Any] = {}


def decode(text: str) -> Token:
    """Raises BadToken."""
    parts = text.split(".")
    if len(parts) != 3:
        raise BadToken("expected 3 chunks")
    header: _Header = _part(parts[0], _Header)
    payload: _Payload = _part(parts[1], _Payload)
    if header.typ.lower() != "jwt" or header.alg.lower() not in ALGORITHMS:
        raise BadToken(f'not supported type "{header.typ}" or algorithm "{header.alg}"')
    version = payload.nats.get("version", 1)
    if ALGORITHMS[header.alg.lower()] != version:
        raise BadToken(f"version {version} does not go with algorithm {header.alg}")
    kind = payload.nats.get("type") if version > 1 else payload.type
    if not isinstance(kind, str) or kind not in SUBJECTS:
        raise BadToken(f'not the claim of an operator, an account or a user: "{kind}"')
    if not nkeys.is_public(payload.sub, SUBJECTS[kind]):
        raise BadToken("the subject is not a key of its kind")
    if not nkeys.is_public(payload.iss, ISSUERS[kind]):
        raise BadToken("the issuer is not a key that may sign this")
    signed = parts[1] if version == 1 else f"{parts[0]}.{parts[1]}"
    if not nkeys.verify(payload.iss, signed.encode(), nkeys.signature(parts[2])):
        raise BadToken(f"claim failed V{version} signature verification")
    return Token(
        kind=kind,
        version=version,
        issuer=payload.iss,
        subject=payload.sub,
        name=payload.name,
        issued_at=payload.iat,
        expires=payload.exp,
        not_before=payload.nbf,
        claims=payload.nats,
        audience=payload.aud,
    )


def encode(claims: dict[str, Any], sign: Callable[[bytes], bytes]) -> str:
    """A token of version 2; its id is derived from the claims."""
    named = claims | {"jti": _id(claims)}
    signed = f"{_text(_HEADER)}.{_text(msgspec.json.encode(named))}"
    return f"{signed}.{_text(sign(signed.encode()))}"


def _id(claims: dict[str, Any]) -> str:
    digest = hashlib.new("sha512_256", msgspec.json.encode(claims)).digest()
    return base64.b32encode(digest).decode().rstrip("=")


def _text(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).decode().rstrip("=")


def inside(text: str) -> str:
    """The token in a file: alone, or between BEGIN and END lines."""
    lines = [line.strip() for line in text.splitlines()]
    for number, line in enumerate(lines):
        if line.startswith("-----BEGIN") and "JWT" in line:
            return next((one for one in lines[number + 1 :] if one), "")
    return text.strip()


def _part(text: str, shape: type[msgspec.Struct]) -> Any:
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(raw, type=shape)
    except (binascii.Error, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise BadToken(f"unreadable: {error}") from error
