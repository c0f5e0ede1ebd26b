"""Checks of what the broker promises, on the journal of the clients and the state of all nodes."""
