"""Publishes: collected per stream, forwarded to the stream's leader, acknowledged."""
