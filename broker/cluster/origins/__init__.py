"""Mirrors and sources: reading the streams that other streams are filled from.

Begin with `mirroring.py` (which origins are read), then `origin_reader.py` (one of them) and
`origin_connection.py` (the client connection it reads from)."""
