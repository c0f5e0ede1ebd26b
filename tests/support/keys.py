"""Keys that can sign, for tests: the seeds that clients hold."""

from __future__ import annotations

import base64
from hashlib import sha256
from itertools import count
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from broker.credentials.nkeys import KeyKind, crc16, encode

SEED_PREFIX = 0x90  # S
_drawn = count()


class Key:
    """A fresh key pair, the same in every run; the seed is what clients log in with."""

    def __init__(self, kind: KeyKind) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(sha256(b"%d" % next(_drawn)).digest())
        public = self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.public = encode(kind, public)
        head = bytes((SEED_PREFIX | kind >> 5, (kind & 31) << 3))
        body = head + self._private.private_bytes_raw()
        self.seed = base64.b32encode(body + crc16(body).to_bytes(2, "little")).decode().rstrip("=")

    def sign(self, data: bytes) -> bytes:
        return self._private.sign(data)

    def sign_nonce(self, nonce: str) -> str:
        return base64.urlsafe_b64encode(self.sign(nonce.encode())).decode().rstrip("=")


def token(signer: Key, kind: str, subject: str, *, version: int = 2, **fields: Any) -> str:
    """A JWT. `fields` are claims of its own; what is in `nats` goes there."""
    nats: dict[str, Any] = dict(fields.pop("nats", {}))
    payload: dict[str, Any] = {"iss": signer.public, "sub": subject, "iat": 1_000, **fields}
    if version == 1:
        payload["type"] = kind
    else:
        nats = {"version": version, "type": kind, **nats}
    algorithm = "ed25519" if version == 1 else "ed25519-nkey"
    head = _part({"typ": "JWT", "alg": algorithm})
    body = _part({**payload, "nats": nats})
    signed = body if version == 1 else f"{head}.{body}"
    return f"{head}.{body}.{_text(signer.sign(signed.encode()))}"


def _part(document: dict[str, Any]) -> str:
    return _text(msgspec.json.encode(document))


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
