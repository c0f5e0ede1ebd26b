"""Mirrors and sources: reading their origins, the streams that they copy.

Start reading with `mirroring.py` (which origins are read), then `origin_reader.py` (one of them)
and `origin_connection.py` (the client connection to it)."""
