"""Publishing as every replica applies it: checks, duplicate window, batches, counters, limits.

Start reading with `apply_publish.py` (what a publish entry does) and `message_writer.py` (what
storing a message involves)."""
