"""Links between nodes: dialing, accepting, handshake, frames, the message codec."""

from raft.transport.transport import Transport

__all__ = ["Transport"]
