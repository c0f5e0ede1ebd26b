"""JetStream as pure state machines: streams and consumers, their API, their rules.

Start reading with `stream/stream.py` (what every replica does with a log entry) and
`delivery/engine.py` (what only the leader does). From the bottom up: `config`, `commands` (log
entries), `consumer`, `schedules`, `publish`, `delivery`, `api`, and `stream`, which composes the
parts of a stream."""
