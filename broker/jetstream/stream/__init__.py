"""One replicated stream: `stream.py` composes its parts and says what a log entry does to each."""
