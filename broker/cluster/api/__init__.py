"""The JetStream API: who answers a request, and how."""
