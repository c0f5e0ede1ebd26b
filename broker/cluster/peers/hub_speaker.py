"""Elects the node of a cluster that announces the cluster's streams and JetStream API to a hub.

Owns: the choice (the "speaker"), and the pause before a node begins to announce.
May not touch: connections, beyond calling `speak`; what is announced (broker/server/leaf).
In a cluster of leaf nodes, every node has its own connections to the hub, and offers all streams
and the JetStream API to its clients. Only one node may announce them to the hub: otherwise a
message would be stored, and a request answered, once per node. Of the nodes that are connected to a
hub, the one with the lowest id is the speaker. A node that does not see a majority of the members
is never the speaker: it could store nothing. Between two speakers there is a moment without one
rather than with two: publishers notice it (no responders), while a message stored twice would go
unnoticed.
Spec: decision 47."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from broker.server.leaf.leaf_sink import LeafSink
from broker.subjects import SinkKind
from raft import NodeId
from raft.transport.transport import Peer

SETTLE_S = 0.25  # from the choice to the first announcement: the others know of it by then
FACT = "hubs"  # in the hello: the hubs a node is connected to
HUBS_MAX = 1024  # hubs listed in the hello; to hubs beyond them nothing is announced


class HubPeers(Protocol):
    """The mesh, as far as the choice needs it."""

    @property
    def node(self) -> NodeId: ...
    def peers(self) -> list[Peer]: ...
    def tell(self, **facts: Any) -> None: ...
    def connected(self, node: NodeId) -> bool: ...


class HubConnection(Protocol):
    """A leaf node connection. Only those to hubs matter here."""

    remote_id: str

    @property
    def sink(self) -> LeafSink | None: ...
    def speak(self, *, on: bool) -> None: ...


class Timer(Protocol):
    def cancel(self) -> None: ...


def _later(seconds: float, act: Callable[[], None]) -> Timer:
    return asyncio.get_running_loop().call_later(seconds, act)


@dataclass(slots=True, eq=False)
class HubSpeaker:
    """Observes leaf node connections (LeafObserver) and peers."""

    mesh: HubPeers
    members: Callable[[], Collection[NodeId]]
    later: Callable[[float, Callable[[], None]], Timer] = _later
    _hubs: dict[HubConnection, str] = field(default_factory=dict)
    _chosen: dict[HubConnection, Timer] = field(default_factory=dict)

    # -- notifications --------------------------------------------------------------------------

    def leaf_connected(self, connection: HubConnection) -> None:
        """Called before any subscription is announced to the other side."""
        sink = connection.sink
        if sink is None or sink.kind is not SinkKind.HUB:
            return
        sink.speaks = False
        hub = sink.cluster or connection.remote_id
        self._hubs[connection] = f"{sink.account.name} {hub}"
        self._tell()

    def leaf_disconnected(self, connection: HubConnection) -> None:
        if self._hubs.pop(connection, None) is not None:
            self._silence(connection)
            self._tell()

    def peer_changed(self, _peer: Peer, _connected: bool) -> None:  # noqa: FBT001
        self.review()

    def _tell(self) -> None:
        self.mesh.tell(**{FACT: sorted(set(self._hubs.values()))[:HUBS_MAX]})
        self.review()

    # -- the choice -----------------------------------------------------------------------------

    def review(self) -> None:
        """Choose again: members, peers or connections have changed."""
        members = self.members()
        seen = sum(self.mesh.connected(node) for node in members)
        able = 2 * seen > len(members)
        known = sorted(set(self._hubs.values()))[:HUBS_MAX]
        for connection, hub in self._hubs.items():
            if able and hub in known and self._lowest(hub):
                self._begin(connection)
            else:
                self._silence(connection)

    def _lowest(self, hub: str) -> bool:
        return not any(
            peer.node < self.mesh.node and peer.connected and hub in _texts(peer.hello.get(FACT))
            for peer in self.mesh.peers()
        )

    def _begin(self, connection: HubConnection) -> None:
        if connection not in self._chosen:
            self._chosen[connection] = self.later(SETTLE_S, partial(connection.speak, on=True))

    def _silence(self, connection: HubConnection) -> None:
        timer = self._chosen.pop(connection, None)
        if timer is not None:
            timer.cancel()
            connection.speak(on=False)


def _texts(value: object) -> list[object]:
    """The list in a peer's hello, which is not trusted."""
    return value if isinstance(value, list) else []
