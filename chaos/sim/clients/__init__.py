"""Clients of the simulated cluster: they speak the NATS protocol and record what they were told."""
