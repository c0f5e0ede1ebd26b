"""One replicated stream: `stream.py` composes its parts and applies log entries to them."""
