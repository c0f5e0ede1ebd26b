"""Snapshot streams between two nodes: their frames, sending, receiving."""
