"""How this server logs in to another one: creds, seeds, TLS.

Owns: reading creds, seeds and certificates. They are read for every connection, so that they can be
renewed without a restart.
May not touch: the connection.
Spec: NATS client protocol, CONNECT (nkey, jwt, sig); NATS creds files."""

from __future__ import annotations

import ssl
from pathlib import Path

from broker.config.options import TlsOptions
from broker.credentials.connect_fields import creds_fields, seed_fields
from broker.credentials.seeds import BadSeed


class LoginFailed(Exception):
    """The credentials cannot be used; str() names the file and the reason."""


def creds_login(path: str, nonce: str) -> dict[str, str]:
    """The fields of CONNECT for a file with a user JWT and its seed. Raises LoginFailed."""
    text = _read(path)
    try:
        return creds_fields(text, nonce)
    except BadSeed as bad:
        raise LoginFailed(f"{path}: {bad}") from bad


def seed_file_login(path: str, nonce: str) -> dict[str, str]:
    """For a file with a seed. Raises LoginFailed."""
    return seed_login(_read(path), nonce, source=path)


def seed_login(seed: str, nonce: str, *, source: str) -> dict[str, str]:
    """For a seed; `source` is named in errors. Raises LoginFailed."""
    try:
        return seed_fields(seed, nonce)
    except BadSeed as bad:
        raise LoginFailed(f"{source}: {bad}") from bad


def tls_context(tls: TlsOptions | None) -> ssl.SSLContext:
    """Raises LoginFailed."""
    if tls is None:
        return ssl.create_default_context()
    try:
        context = ssl.create_default_context(cafile=tls.ca_file or None)
        if tls.min_version == "1.3":
            context.minimum_version = ssl.TLSVersion.TLSv1_3
        if tls.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if tls.cert_file:
            context.load_cert_chain(tls.cert_file, tls.key_file or None)
    except (OSError, ssl.SSLError) as error:
        raise LoginFailed(f"tls: {error}") from error
    return context


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise LoginFailed(f"{path}: {error}") from error
