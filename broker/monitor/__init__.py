"""Everything that answers questions about a running server: HTTP and the system account."""
