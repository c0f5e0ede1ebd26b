"""Connections that we refused or that failed: counted by kind, and logged once per reason.

Owns: the counts, and which reasons were logged.
May not touch: connections, the handshake.
Spec: a refused peer keeps retrying, so each reason is logged once. The set of logged reasons is
bounded: a peer that keeps causing new reasons can neither flood the log nor silence it forever."""

from __future__ import annotations

import logging
import ssl
import time
from collections import Counter
from typing import Final

_log = logging.getLogger("raft.transport")
_REASONS_MAX: Final = 256  # then further reasons are not logged
_REASONS_SECONDS: Final = 60.0  # after which the memory of reasons is cleared, if it is full


class Refusals:
    def __init__(self, name: str) -> None:
        """`name` of this node, for the log."""
        self.counts: Counter[str] = Counter()
        self._name = name
        self._reasons: set[str] = set()
        self._reasons_since = time.monotonic()

    def count(self, kind: str) -> None:
        self.counts[kind] += 1

    def log_once(self, reason: str) -> None:
        if reason in self._reasons:
            return
        now = time.monotonic()
        if len(self._reasons) >= _REASONS_MAX:
            if now - self._reasons_since < _REASONS_SECONDS:
                return
            self._reasons.clear()
        if not self._reasons:
            self._reasons_since = now
        self._reasons.add(reason)
        _log.warning("%s: %s", self._name, reason)
        if len(self._reasons) == _REASONS_MAX:
            _log.warning("%s: further reasons are not logged for now", self._name)

    def tls_failed(self, peer: str, error: OSError) -> None:
        self.count("tls")
        self.log_once(f"TLS handshake with {peer} failed: {_tls_reason(error)}")


def _tls_reason(error: OSError) -> str:
    """The reason, without the source location that the TLS library adds."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate was rejected: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        words = error.reason.lower().replace("_", " ")
        return f"it refused the connection: {words}" if " alert " in f" {words} " else words
    return str(error) or "connection lost"
