"""Announcements of leadership: each node tells the others which groups it leads and serves.

Owns: the frames on CHANNEL_LEADS.
May not touch: elections (raft); the table of known leaders decides what is newest
(peers/leader_table.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from broker.cluster.peers.channels import CHANNEL_LEADS
from broker.cluster.peers.leader_table import LeaderTable
from broker.cluster.peers.mesh import Mesh
from raft import NodeId, Term
from raft.transport.transport import Peer

_encode = msgspec.msgpack.Encoder().encode
_leads = msgspec.msgpack.Decoder(list[tuple[int, int]])


@dataclass(slots=True)
class LeaderAnnouncements:
    mesh: Mesh
    leaders: LeaderTable
    led: Callable[[], list[tuple[int, Term]]]  # everything this node leads

    def start(self) -> None:
        self.mesh.register(CHANNEL_LEADS, self._received)

    def announce(self, group: int, term: Term) -> None:
        """This node has become the leader of a group and is ready to serve it."""
        self.leaders.note(group, term, self.mesh.node, serving=True)
        self.mesh.broadcast(CHANNEL_LEADS, _encode([(group, term)]))

    def peer_changed(self, peer: Peer, connected: bool) -> None:  # noqa: FBT001
        if connected:
            self.mesh.send(peer.node, CHANNEL_LEADS, _encode(self.led()))

    def _received(self, peer: NodeId, frame: bytes) -> None:
        for group, term in _leads.decode(frame):
            self.leaders.note(group, Term(term), peer, serving=True)
