"""The transport of a server without a cluster.

Owns: nothing. It replaces raft.transport.transport.Transport, so that the Raft host needs no
special case for a single server.
May not touch: anything."""

from __future__ import annotations

from collections.abc import Callable

from raft import NodeId
from raft.transport.transport import Peer


class NoPeers:
    """A transport without peers."""

    def register(
        self, channel: int, on_frame: Callable[[NodeId, bytes], None], *, borrowed: bool = False
    ) -> None:
        """No frame ever arrives."""

    def send(self, to: NodeId, channel: int, payload: bytes, *, control: bool = False) -> bool:
        return False

    def peers(self) -> dict[NodeId, Peer]:
        return {}

    def connected_peers(self) -> set[NodeId]:
        return set()

    def connected(self, node: NodeId) -> bool:
        return False

    def pending_bytes(self, node: NodeId) -> int:
        return 0
