"""Snapshot transfers between two nodes: their frames, sending, receiving."""
