"""Benchmarks: a cheap load client, the servers it runs against, and the tables it prints."""
