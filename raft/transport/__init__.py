"""Links between nodes: dialing, accepting, handshake, frames, the message codec."""
