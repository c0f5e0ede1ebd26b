"""Snapshots between two nodes: their frames, sending, receiving."""
