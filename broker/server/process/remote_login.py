"""How this server logs in to another one: creds, seeds, TLS.

Owns: reading creds, seeds and certificates; at every connection anew, so that they may be renewed.
May not touch: the connection.
Spec: NATS client protocol, CONNECT (nkey, jwt, sig); NATS creds files."""

from __future__ import annotations

import base64
import ssl
from pathlib import Path

from broker.config.options import TlsOptions
from broker.server.process.private_keys import BadSeed, SigningKey


class LoginFailed(Exception):
    """The credentials cannot be used; str() names the file and the reason."""


def creds_login(path: str, nonce: str) -> dict[str, str]:
    """The fields of CONNECT for a file with a user JWT and its seed. Raises LoginFailed."""
    text = _read(path)
    token, seed = _section(text, "JWT"), _section(text, "SEED")
    if not token or not seed:
        raise LoginFailed(f"{path}: no user JWT and seed in it")
    return {"jwt": token, "sig": _signed(_key(seed, path), nonce)}


def seed_file_login(path: str, nonce: str) -> dict[str, str]:
    """For a file with a seed. Raises LoginFailed."""
    text = _read(path)
    return seed_login(_section(text, "SEED") or text.strip(), nonce, source=path)


def seed_login(seed: str, nonce: str, *, source: str) -> dict[str, str]:
    """For a seed; `source` is named in errors. Raises LoginFailed."""
    key = _key(seed, source)
    return {"nkey": key.public, "sig": _signed(key, nonce)}


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


def _section(text: str, what: str) -> str:
    """The line after the BEGIN line that names it; empty if there is none."""
    lines = [line.strip() for line in text.splitlines()]
    for number, line in enumerate(lines):
        if line.startswith("-----BEGIN") and what in line:
            return next((one for one in lines[number + 1 :] if one), "")
    return ""


def _key(seed: str, path: str) -> SigningKey:
    try:
        return SigningKey.from_seed(seed)
    except BadSeed as bad:
        raise LoginFailed(f"{path}: {bad}") from bad


def _signed(key: SigningKey, nonce: str) -> str:
    return base64.urlsafe_b64encode(key.sign(nonce.encode())).decode().rstrip("=")
