"""The CONNECT fields that prove a client's identity: signatures made with seeds and creds.

Owns: reading the text of creds, and signing the nonce of a server.
May not touch: files, connections.
Spec: NATS client protocol, CONNECT (nkey, jwt, sig); NATS creds files."""

from __future__ import annotations

from broker.credentials.seeds import BadSeed, signed


def creds_fields(text: str, nonce: str) -> dict[str, str]:
    """For the text of a creds file: a user JWT and its seed. Raises BadSeed."""
    token, seed = section(text, "JWT"), section(text, "SEED")
    if not token or not seed:
        raise BadSeed("no user JWT and seed in it")
    return jwt_fields(token, seed, nonce)


def jwt_fields(token: str, seed: str, nonce: str) -> dict[str, str]:
    """For a user JWT and its seed. Raises BadSeed."""
    return {"jwt": token, "sig": signed(seed, nonce.encode())[1]}


def seed_fields(text: str, nonce: str) -> dict[str, str]:
    """For a seed, alone or in a creds file. Raises BadSeed."""
    public, signature = signed(section(text, "SEED") or text.strip(), nonce.encode())
    return {"nkey": public, "sig": signature}


def section(text: str, what: str) -> str:
    """The line after the BEGIN line that names it; empty if there is none."""
    lines = [line.strip() for line in text.splitlines()]
    for number, line in enumerate(lines):
        if line.startswith("-----BEGIN") and what in line:
            return next((one for one in lines[number + 1 :] if one), "")
    return ""
