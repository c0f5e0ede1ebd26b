"""Message tracing: the events that follow one message through the server (Nats-Trace-Dest)."""
