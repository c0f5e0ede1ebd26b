"""JetStream as pure state machines: streams and consumers, their API, their rules.

Begin with `stream/stream.py` (what every replica does with a log entry) and `delivery/engine.py`
(what only the leader does)."""
