"""The other nodes: links, calls, interest, who leads what."""
