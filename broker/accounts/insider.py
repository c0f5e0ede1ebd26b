"""The way in for the server's own connections to itself: mirrors and sources read the streams of
their account through the client port, like any client.

Owns: a password that only this process knows.
May not touch: the configuration; it works whoever else may connect.
Spec: DESIGN section 8."""

from __future__ import annotations

import hmac
import secrets
from typing import Final

from broker.accounts.identity import Credentials, Identity

_PASSWORD: Final = secrets.token_hex(32)
_NAME: Final = "$insider."


def credentials(account: str) -> Credentials:
    return Credentials(user=_NAME + account, password=_PASSWORD)


def identify(given: Credentials) -> Identity | None:
    """None: it is somebody else."""
    if given.user.startswith(_NAME) and hmac.compare_digest(
        _PASSWORD.encode(), given.password.encode()
    ):
        return Identity(given.user, given.user.removeprefix(_NAME))
    return None
