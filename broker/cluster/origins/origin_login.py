"""How a mirror or source logs in to its origin: which credentials go into CONNECT.

Owns: the address of an origin, and the precedence of its credentials.
May not touch: the connection; how files are read (broker/server/process/remote_login.py).
Spec: NATS client protocol, CONNECT (nkey, jwt, sig)."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import SplitResult, unquote

from broker.config.options import TlsOptions
from broker.server.process.remote_login import creds_login, seed_file_login


@dataclass(frozen=True, slots=True)
class OriginAddress:
    urls: tuple[str, ...]
    user: str = ""
    password: str = ""
    token: str = ""
    api: str = "$JS.API"
    creds: str = ""  # a file with a user JWT and its seed
    nkey: str = ""  # a file with a seed
    tls: TlsOptions | None = None


def credentials(address: OriginAddress, url: SplitResult, nonce: str) -> dict[str, str]:
    """For CONNECT. Configured ones take precedence over those in the URL. Raises LoginFailed."""
    if address.creds:
        return creds_login(address.creds, nonce)
    if address.nkey:
        return seed_file_login(address.nkey, nonce)
    if address.token:
        return {"auth_token": address.token}
    if address.user:
        return {"user": address.user, "pass": address.password}
    user, password = unquote(url.username or ""), unquote(url.password or "")
    if user and password:
        return {"user": user, "pass": password}
    return {"auth_token": user} if user else {}  # a user without a password is a token
