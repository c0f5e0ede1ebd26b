"""Bulk reads and the Spark source, against peers that serve real blocks."""
