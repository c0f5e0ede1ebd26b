"""The links of a server that is no cluster's member.

Owns: nothing.
May not touch: anything; it stands where raft.transport.Transport does and knows nobody.
Spec: DESIGN section 8."""

from __future__ import annotations

from collections.abc import Callable

from raft import NodeId
from raft.transport.transport import Peer


class NoPeers:
    """The transport of a server without a cluster: there is nobody to talk to."""

    def register(
        self, channel: int, on_frame: Callable[[NodeId, bytes], None], *, borrowed: bool = False
    ) -> None:
        """No frame will ever come."""

    def send(self, to: NodeId, channel: int, payload: bytes, *, control: bool = False) -> bool:
        return False

    def peers(self) -> dict[NodeId, Peer]:
        return {}

    def connected(self, node: NodeId) -> bool:
        return False

    def pending_bytes(self, node: NodeId) -> int:
        return 0
