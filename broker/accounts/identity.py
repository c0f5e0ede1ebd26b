"""The credentials of a CONNECT, and the user they identify.

Owns: the two records.
May not touch: how credentials are checked (authentication.py, tokens.py).
Spec: NATS client protocol, CONNECT."""

from __future__ import annotations

from dataclasses import dataclass, replace

from broker.accounts.account import GLOBAL_ACCOUNT
from broker.config.options import STANDARD, Permissions


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a CONNECT contained, and over which kind of connection it came."""

    user: str = ""
    password: str = ""
    token: str = ""
    nkey: str = ""
    jwt: str = ""
    signature: str = ""  # of the nonce, base64
    nonce: str = ""  # the nonce of INFO that the client had to sign
    host: str = ""
    connection_type: str = STANDARD
    certified: tuple[str, ...] | None = None  # names in its certificate; None: they do not count

    @property
    def empty(self) -> bool:
        return not (self.user or self.password or self.token or self.nkey)


@dataclass(frozen=True, slots=True)
class Identity:
    """An authenticated user."""

    user: str = ""
    account: str = GLOBAL_ACCOUNT
    permissions: Permissions | None = None
    max_subscriptions: int = -1
    max_payload: int = -1
    expires: float = 0  # seconds since 1970; 0 = never
    farewell: str = ""  # the error that is sent when it expires
    issuer: str = ""  # who signed the JWT
    account_name: str = ""  # in the JWT of its account
    tags: tuple[str, ...] = ()
    name: str = ""  # in the JWT
    bearer: bool = False  # the JWT alone is enough to log in

    def with_permissions(self, permissions: Permissions) -> Identity:
        return replace(self, permissions=permissions)
