"""What a command puts into CONNECT to prove who it is.

Owns: reading creds and seeds, and which kind of login is used.
May not touch: sockets."""

from __future__ import annotations

from pathlib import Path

from broker.cli.connect.failures import CommandFailed
from broker.cli.connect.options import Destination
from broker.credentials.connect_fields import creds_fields, jwt_fields, seed_fields
from broker.credentials.seeds import BadSeed


def connect_fields(to: Destination, nonce: str, user: str, password: str) -> dict[str, str]:
    """`user` and `password` are those of the URL; options come first. A URL with a user alone
    has a token."""
    try:
        if to.creds:
            return creds_fields(_text(to.creds), nonce)
        if to.user_jwt and to.user_seed:
            return jwt_fields(to.user_jwt, to.user_seed, nonce)
        if to.nkey:
            return seed_fields(_text(to.nkey), nonce)
    except BadSeed as bad:
        raise CommandFailed(f"{to.creds or to.nkey or 'the seed'}: {bad}") from bad
    if to.token:
        return {"auth_token": to.token}
    if to.user:
        return {"user": to.user, "pass": to.password}
    if user and not password:
        return {"auth_token": user}
    return {"user": user, "pass": password} if user else {}


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"cannot read {path}: {error}") from error
