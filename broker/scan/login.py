"""How a reader or writer logs in: its credentials, references to secrets, the fields of CONNECT.

Owns: Login, and resolving references to secrets when a connection is opened.
May not touch: sockets.
Spec: a secret is a text, `file:<path>` or `env:<name>`. References are resolved by the process that
connects, so a secret that is mounted into driver and executors is in no plan and in no log. `repr`
shows no secret."""

from __future__ import annotations

import os
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from broker.credentials.connect_fields import creds_fields, jwt_fields, seed_fields
from broker.credentials.seeds import BadSeed

_CREDS: Final = re.compile(r"\s*-----")
_SEED: Final = re.compile(r"\s*(-----|S[A-Z2-7]{50,}\s*$)")
_JWT: Final = re.compile(r"eyJ[\w-]+\.[\w-]+\.")


class LoginUnusable(ValueError):
    """The credentials cannot be read or used; the text names the option and the reason."""


@dataclass(frozen=True, slots=True)
class Login:
    """Credentials and timeouts of a reader. Secrets may be references."""

    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    credentials: str = field(default="", repr=False)  # a creds file, or its text
    nkey: str = field(default="", repr=False)  # a seed, or a file with one
    jwt: str = field(default="", repr=False)  # with the seed in `nkey`
    tls: bool = False  # require TLS; a server that requires it gets it in any case
    tls_ca: str = ""  # a file; "" means the certificate authorities of the machine
    tls_cert: str = ""  # a file with the certificate of this client
    tls_key: str = ""  # a file with its key
    tls_first: bool = False  # handshake before INFO
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 30.0

    def connect_fields(self, nonce: str) -> dict[str, Any]:
        """For CONNECT. Raises LoginUnusable."""
        try:
            if self.credentials:
                return dict(creds_fields(_file_or_text(self.credentials, _CREDS), nonce))
            if self.jwt:
                seed = _file_or_text(self.nkey, _SEED).strip()
                return dict(jwt_fields(_file_or_text(self.jwt, _JWT).strip(), seed, nonce))
            if self.nkey:
                return dict(seed_fields(_file_or_text(self.nkey, _SEED), nonce))
        except BadSeed as bad:
            name = "credentials" if self.credentials else "nkey"
            raise LoginUnusable(f"the option {name} cannot be used: {bad}") from bad
        if self.token:
            return {"auth_token": secret(self.token)}
        if self.user:
            return {"user": self.user, "pass": secret(self.password)}
        return {}

    @property
    def kind(self) -> str:
        """What was tried, for error messages."""
        if self.credentials:
            return "credentials"
        if self.jwt:
            return "jwt"
        if self.nkey:
            return "nkey"
        if self.token:
            return "token"
        return "user and password" if self.user else "no credentials"

    def tls_context(self) -> ssl.SSLContext:
        """Raises LoginUnusable."""
        try:
            context = ssl.create_default_context(cafile=self.tls_ca or None)
        except (OSError, ssl.SSLError) as error:
            raise LoginUnusable(f"the option tlsCa {self.tls_ca!r}: {error}") from error
        if self.tls_cert:
            try:
                context.load_cert_chain(self.tls_cert, self.tls_key or None)
            except (OSError, ssl.SSLError) as error:
                text = f"the options tlsCert {self.tls_cert!r} and tlsKey: {error}"
                raise LoginUnusable(text) from error
        return context


def secret(text: str) -> str:
    """The secret that the text is or refers to. Raises LoginUnusable."""
    scheme, _, where = text.partition(":")
    if scheme == "file":
        try:
            return Path(where).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise LoginUnusable(f"cannot read the secret {text!r}: {error}") from error
    if scheme == "env":
        found = os.environ.get(where)
        if found is None:
            raise LoginUnusable(f"the secret {text!r}: there is no such environment variable here")
        return found.strip()
    return text


def _file_or_text(given: str, looks: re.Pattern[str]) -> str:
    """The contents of the file, unless `given` is the text itself, recognized by its form."""
    text = secret(given)
    return text if text != given or looks.match(text) else secret(f"file:{given}")
