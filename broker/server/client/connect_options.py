"""The CONNECT line of a client: its options and credentials.

Owns: the defaults, and the tolerant decoding of that JSON.
May not touch: the decision whether the client is admitted (login.py).
Spec: NATS client protocol, CONNECT; keys in any case, unknown keys are ignored, verbose and echo
default to true."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec

from broker.accounts.identity import Credentials
from broker.server.process.printable import quoted


class BadConnect(Exception):
    """Not JSON, not an object, or a field of the wrong type: the connection closes silently."""


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    verbose: bool = True
    pedantic: bool = True
    echo: bool = True
    headers: bool = False
    no_responders: bool = False
    tls_required: bool = False
    protocol: int = 0
    name: str = ""
    lang: str = ""
    version: str = ""
    user: str = ""
    password: str = ""
    auth_token: str = ""
    account: str = ""
    nkey: str = ""
    jwt: str = ""
    sig: str = ""

    @property
    def shown_user(self) -> str:
        """The user, as the log shows it."""
        if self.nkey:
            return f"Nkey {quoted(self.nkey)}"
        if self.jwt:
            return "JWT User"
        return f"User {quoted(self.user)}" if self.user else "User N/A"

    def credentials(
        self,
        nonce: str,
        host: str,
        connection_type: str,
        certified: tuple[str, ...] | None = None,
    ) -> Credentials:
        return Credentials(
            user=self.user,
            password=self.password,
            token=self.auth_token,
            nkey=self.nkey,
            jwt=self.jwt,
            signature=self.sig,
            nonce=nonce,
            host=host,
            connection_type=connection_type,
            certified=certified,
        )

    def completed(self, brought: Credentials) -> ConnectOptions:
        """A copy in which credentials missing from CONNECT come from `brought` (a cookie)."""
        if brought.empty and not brought.jwt:
            return self
        return replace(
            self,
            user=self.user or brought.user,
            password=self.password or brought.password,
            auth_token=self.auth_token or brought.token,
            jwt=self.jwt or brought.jwt,
        )


_BOOLS = ("verbose", "pedantic", "echo", "headers", "no_responders", "tls_required")
_TEXTS = {
    "name": "name",
    "lang": "lang",
    "version": "version",
    "user": "user",
    "pass": "password",
    "auth_token": "auth_token",
    "account": "account",
    "nkey": "nkey",
    "jwt": "jwt",
    "sig": "sig",
}


def parse_connect(text: bytes) -> ConnectOptions:
    try:
        document: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadConnect(str(error)) from error
    if not isinstance(document, dict):
        raise BadConnect("CONNECT is not a JSON object")
    fields: dict[str, Any] = {}
    for raw, value in document.items():
        key = raw.lower()
        if value is None:
            continue
        if key in _BOOLS:
            fields[key] = _typed(key, value, bool)
        elif key in _TEXTS:
            fields[_TEXTS[key]] = _typed(key, value, str)
        elif key == "protocol":
            fields[key] = _typed(key, value, int)
    return ConnectOptions(**fields)


def _typed(key: str, value: object, kind: type) -> object:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise BadConnect(f"CONNECT field {key} has the wrong type")
    return value


def redacted(text: bytes) -> str:
    """The CONNECT line without its secrets."""
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "[REDACTED]"
    if isinstance(document, dict):
        for key in document:
            if key.lower() in {"pass", "auth_token", "jwt", "sig", "nkey", "proxy_sig"}:
                document[key] = "[REDACTED]"
    return msgspec.json.encode(document).decode()
