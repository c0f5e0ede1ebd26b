"""The broker: a NATS server with JetStream whose streams are Raft groups.

docs/ARCHITECTURE.md has the folders and how they hang together."""
