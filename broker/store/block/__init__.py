"""The block format: many messages in columns. `block_format.py` is its specification.

Nothing is imported here: clients of a scan read blocks with `block_format.py` alone, without the
compiled codecs. The server uses `codec.py`, which selects them."""
