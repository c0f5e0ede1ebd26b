"""Encryption at rest: the key of a data directory, and the cipher of what is stored in it."""
