"""The identity of this server: its id and name, and the nonces that its clients sign.

Owns: the randomness of ids and nonces.
May not touch: how keys are encoded (broker.credentials).
Spec: NATS client protocol, INFO (server_id, server_name, nonce). A new id at every start, a new
nonce for every connection."""

from __future__ import annotations

import base64
import os
import time
from dataclasses import dataclass, field
from typing import Any

from broker.config.options import VERSION, Options
from broker.credentials import nkeys
from broker.server.process.private_keys import SigningKey
from broker.server.process.times import timestamp

NONCE_BYTES = 11
HAS_JETSTREAM = 1  # a bit of `flags`


def server_id() -> str:
    """56 characters, beginning with N."""
    return nkeys.encode(nkeys.KeyKind.SERVER, os.urandom(nkeys.KEY_BYTES))


def nonce() -> str:
    """15 characters of base64url."""
    return base64.urlsafe_b64encode(os.urandom(NONCE_BYTES)).decode().rstrip("=")


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """Fixed for the life of the process."""

    id: str
    name: str
    host: str
    started: float = field(default_factory=time.time)
    key: SigningKey | None = None  # the private half of the id

    @classmethod
    def create(cls, name: str, host: str, *, signs: bool = False) -> ServerIdentity:
        """A new id; a server without a name is called by its id. Only one that `signs` has a
        private key: making one costs a tenth of the start-up time."""
        key = SigningKey(nkeys.KeyKind.SERVER) if signs else None
        new = server_id() if key is None else key.public
        return cls(new, name or new, host, key=key)

    def sign(self, data: bytes) -> bytes:
        assert self.key is not None, "created as one that signs"
        return self.key.sign(data)

    def document(self, options: Options, *, seq: int, tags: bool = True) -> dict[str, Any]:
        """The `server` part of events, answers and trace reports, stamped with number and time."""
        cluster, jetstream = options.cluster, options.jetstream
        found: dict[str, Any] = {"name": self.name, "host": self.host, "id": self.id}
        if cluster is not None and cluster.name:
            found["cluster"] = cluster.name
        if jetstream is not None and jetstream.domain:
            found["domain"] = jetstream.domain
        found["ver"] = VERSION
        if tags and options.server_tags:
            found["tags"] = list(options.server_tags)
        return found | {
            "jetstream": jetstream is not None,
            "flags": 0 if jetstream is None else HAS_JETSTREAM,
            "seq": seq,
            "time": timestamp(time.time()),
        }
