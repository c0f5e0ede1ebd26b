"""Benchmarks: a thin load client, the peers it runs against, and the tables it prints."""
