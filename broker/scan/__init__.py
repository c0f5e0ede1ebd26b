"""Bulk reads: stored blocks sent unchanged, from any replica. `protocol` has the format."""
