"""Keys that can sign, for tests: the seeds that clients hold."""

from __future__ import annotations

import base64

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from broker.credentials.nkeys import Kind, crc16, encode

SEED_PREFIX = 0x90  # S


class Key:
    """A fresh key pair; the seed is what `nats.connect(nkeys_seed_str=...)` wants."""

    def __init__(self, kind: Kind) -> None:
        self._private = Ed25519PrivateKey.generate()
        public = self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.public = encode(kind, public)
        head = bytes((SEED_PREFIX | kind >> 5, (kind & 31) << 3))
        body = head + self._private.private_bytes_raw()
        self.seed = base64.b32encode(body + crc16(body).to_bytes(2, "little")).decode().rstrip("=")

    def sign(self, data: bytes) -> bytes:
        return self._private.sign(data)

    def sign_nonce(self, nonce: str) -> str:
        return base64.urlsafe_b64encode(self.sign(nonce.encode())).decode().rstrip("=")
