"""What a CONNECT brought along, and who it turned out to be.

Owns: the two records.
May not touch: how one follows from the other (authentication.py, tokens.py).
Spec: core contract 1.5 and 3.2."""

from __future__ import annotations

from dataclasses import dataclass

from broker.accounts.account import GLOBAL_ACCOUNT
from broker.config.options import STANDARD, Permissions


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a CONNECT brought along, over which connection."""

    user: str = ""
    password: str = ""
    token: str = ""
    nkey: str = ""
    jwt: str = ""
    signature: str = ""  # of the nonce, as text
    nonce: str = ""  # what it was asked to sign
    host: str = ""
    connection_type: str = STANDARD

    @property
    def empty(self) -> bool:
        return not (self.user or self.password or self.token or self.nkey)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who it turned out to be."""

    user: str = ""
    account: str = GLOBAL_ACCOUNT
    permissions: Permissions | None = None
    max_subscriptions: int = -1
    max_payload: int = -1
    expires: float = 0  # seconds since 1970; 0 = never
    farewell: str = ""  # what it is told then
