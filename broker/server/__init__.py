"""The core server: NATS without JetStream, which comes in through `services.py`.

Begin with `server.py`, `client/connection.py` (one client) and `routing/router.py` (from a publish
to its subscribers)."""
