"""The seam between the core server and what lives behind it: JetStream and the cluster.

Owns: the Protocol a runtime fulfils, and its answers when there is none.
May not touch: sockets, Raft, streams.
Spec: core contract 7 for the documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from broker.server.client.connection import Connection
    from broker.server.server import Server

Query = Mapping[str, str]
Document = dict[str, Any]  # JSON that leaves through HTTP


class StartFailed(Exception):
    """The server cannot start; str() is the sentence for the operator (a [FTL] line)."""


class JetStreamRuntime(Protocol):
    """What the server calls. start() runs before the client port opens; it may raise StartFailed
    and may subscribe sinks through server.router."""

    async def start(self, server: Server) -> None: ...

    async def stop(self) -> None: ...

    async def hand_over(self) -> None:
        """Until others lead what they can lead, for a bounded time."""

    def all_answered(self) -> bool:
        """Whether every publish that came from a client here has its answer."""

    def serve_elsewhere(self) -> bool:
        """Whether a client that leaves finds another node."""

    def lame_duck(self) -> None:
        """Hand leaderships over; clients leave soon."""

    def on_connect_info(self) -> Document:
        """Fields for the INFO of every client: jetstream, domain, api_lvl, cluster."""

    def jsz(self, query: Query) -> Document: ...

    def healthz(self, query: Query) -> tuple[int, Document]: ...

    def raftz(self, query: Query) -> Document:
        """{account: {group: {...}}}."""

    def varz_jetstream(self) -> Document: ...

    def routez(self) -> Document:
        """{"num_routes": n, "routes": [...]}."""

    def metrics(self) -> list[tuple[str, str, dict[str, str], float]]:
        """(name, help, labels, value) of gauges for /metrics; called per scrape."""

    def ports(self) -> dict[str, int]:
        """Listeners of the runtime that belong into the ports file: {"cluster": port}."""

    async def scan(self, connection: Connection, request_json: bytes) -> None:
        """Serve one bulk read on this connection; errors are answered, not raised."""
