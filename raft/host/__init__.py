"""All groups of one node: rounds of write, flush, send and apply."""

from raft.host.host import Host

__all__ = ["Host"]
