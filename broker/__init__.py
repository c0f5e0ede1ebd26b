"""The broker: a NATS server with JetStream whose streams are Raft groups.

docs/ARCHITECTURE.md explains the folders and how they depend on each other."""
