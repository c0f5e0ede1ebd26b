"""JetStream as pure state machines: streams and consumers, their API, their rules.

Rooms, each importing only from those before it: `config`, `commands`, `consumer`, `delivery`,
`api`, and on top `stream`. Start with `stream/stream.py` (what every replica does with a log
entry) and `delivery/engine.py` (what only the leader does)."""
