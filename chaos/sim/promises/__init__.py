"""What the broker promises: checks over the journal of the clients and the state of all nodes."""
