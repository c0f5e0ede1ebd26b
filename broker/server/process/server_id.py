"""The id of a server, and the nonces it asks its clients to sign.

Owns: the randomness of both.
May not touch: how keys are written (broker.credentials).
Spec: core contract 1.4; a new id at every start, a new nonce for every connection."""

from __future__ import annotations

import base64
import os

from broker.credentials import nkeys

NONCE_BYTES = 11


def server_id() -> str:
    """56 characters, beginning with N."""
    return nkeys.encode(nkeys.KeyKind.SERVER, os.urandom(nkeys.KEY_BYTES))


def nonce() -> str:
    """15 characters of base64url."""
    return base64.urlsafe_b64encode(os.urandom(NONCE_BYTES)).decode().rstrip("=")
