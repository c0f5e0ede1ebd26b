"""What the monitor reads: the server, the cluster runtime, and the `server` part of its events.

Owns: the Protocols of what is observed, and the number of each event and answer.
May not touch: what it observes, beyond reading it.
Spec: NATS system account, the `server` part of events."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from broker.accounts import Account
from broker.config.options import Options, WebSocketOptions
from broker.server.client.connections import Connections
from broker.server.client.info import ClientUrls
from broker.server.client.listener_profile import ClientContext
from broker.server.client.settings import ServerSettings
from broker.server.leaf.leaf_nodes import LeafNodes
from broker.server.metric_samples import Exposition
from broker.server.process.identity import ServerIdentity
from broker.server.process.loop_lag import LoopLag
from broker.server.process.tasks import Spawn
from broker.server.process.times import timestamp
from broker.server.routing.fair_queue import FairQueue
from broker.server.routing.router import Router
from broker.server.services import Document, Query
from broker.subjects import Steps


class ObservedListener(Protocol):
    """The WebSocket listener."""

    options: WebSocketOptions
    port: int


class ObservedServer(Protocol):
    """The tables of a server, each of them owned by one of its parts."""

    @property
    def options(self) -> Options: ...
    @property
    def settings(self) -> ServerSettings: ...
    @property
    def identity(self) -> ServerIdentity: ...
    @property
    def port(self) -> int: ...
    @property
    def accounts(self) -> Mapping[str, Account]: ...
    @property
    def clients(self) -> ClientContext: ...
    @property
    def connections(self) -> Connections: ...
    @property
    def urls(self) -> ClientUrls: ...
    @property
    def router(self) -> Router: ...
    @property
    def websocket(self) -> ObservedListener | None: ...
    @property
    def leafs(self) -> LeafNodes: ...
    @property
    def leaf_port(self) -> int:
        """Of the leaf node listener; 0: there is none."""

    @property
    def lag(self) -> LoopLag | None: ...
    @property
    def spawn(self) -> Spawn: ...
    @property
    def turns(self) -> FairQueue: ...


class ObservedRuntime(Protocol):
    """The cluster and JetStream, as the documents show them."""

    def jsz(self, query: Query) -> Steps[Document]: ...

    def healthz(self, query: Query) -> Steps[tuple[int, Document]]: ...

    def raftz(self, query: Query) -> Steps[Document]:
        """{account: {group: {...}}}."""

    def varz_jetstream(self) -> Steps[Document]: ...

    def routez(self) -> Document:
        """{"num_routes": n, "routes": [...]}."""

    def metrics(self, into: Exposition) -> Iterator[None]:
        """Add the numbers of this node for /metrics, step by step."""


@dataclass(slots=True)
class _Sequence:
    last: int = 0


@dataclass(frozen=True, slots=True)
class Observed:
    """Handed to every document and service of the monitor."""

    server: ObservedServer
    runtime: ObservedRuntime | None  # None: neither cluster nor JetStream
    _sent: _Sequence = field(default_factory=_Sequence)

    @property
    def id(self) -> str:
        return self.server.identity.id

    @property
    def name(self) -> str:
        return self.server.identity.name

    @property
    def host(self) -> str:
        return self.server.identity.host

    @property
    def cluster_name(self) -> str:
        cluster = self.server.options.cluster
        return "" if cluster is None else cluster.name

    @property
    def system_account(self) -> Account:
        return self.server.accounts[self.server.options.system_account]

    def stamp(self) -> Document:
        """The `server` part of one message: its number rises with every call."""
        self._sent.last += 1
        return self.server.identity.document(self.server.options, seq=self._sent.last)

    def event(self, kind: str) -> Document:
        """The fields that every event begins with."""
        return {
            "type": f"io.nats.server.advisory.v1.{kind}",
            "id": secrets.token_hex(11),
            "timestamp": timestamp(time.time()),
            "server": self.stamp(),
        }
