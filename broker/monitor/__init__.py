"""Monitoring of a running server: HTTP and the system account."""
