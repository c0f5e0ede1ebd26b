"""Interfaces between the core server and what is built on it.

Owns: the JSON vocabulary, StartFailed, and the Protocol of a bulk read.
May not touch: sockets, Raft, streams. Nothing in broker.server imports an implementation of them.
Spec: NATS monitoring endpoints, for the documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from broker.accounts import Account
from broker.subjects import PublishRules

Query = Mapping[str, str]
Document = dict[str, Any]  # a JSON object that leaves through HTTP, INFO or the system account

_TRUE = ("1", "true", "yes", "on")


def has_flag(query: Query, *names: str) -> bool:
    """Whether at least one of these flags is on."""
    return any(query.get(name, "").lower() in _TRUE for name in names)


class StartFailed(Exception):
    """The server cannot start; str() is the text for the operator (a [FTL] line)."""


class BulkReader(Protocol):
    """The connection that asked for a bulk read."""

    @property
    def account(self) -> Account: ...

    @property
    def rules(self) -> PublishRules | None:
        """What its user may publish to; None: everything."""

    def refuse_publish(self, subject: bytes) -> None:
        """Send the client a permissions violation for publishing to `subject`."""

    def queue(self, data: bytes | memoryview) -> None:
        """Append to the outbound buffer."""

    def flush(self) -> None:
        """Write as much of it as the socket takes now."""

    async def drained(self) -> None:
        """Wait until the socket accepts more. Raises ConnectionResetError if the client is gone."""


class BulkReads(Protocol):
    """Serves the SCAN operation. While a scan runs, the connection sends nothing else."""

    async def scan(self, connection: BulkReader, request_json: bytes) -> None:
        """Serve one bulk read on this connection, if its user may read the stream. Errors are sent
        to the client, not raised."""
