"""Bulk reads: stored blocks as they are, from any replica. `protocol` has the format."""
