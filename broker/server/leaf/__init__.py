"""Leaf nodes: servers that take part in one account of ours, and we in one of theirs."""
