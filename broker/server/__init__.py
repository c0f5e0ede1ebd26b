"""The core server: plain NATS. It knows nothing of JetStream, the cluster or the monitor.

Subpackages, each importing only those before it: process, routing, tracing, client, listeners,
leaf. Start reading with `server.py`, `client/connection.py` (one client) and `routing/router.py`
(from a publish to its subscribers)."""
