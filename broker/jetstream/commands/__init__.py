"""The log entries of a stream group: what each kind of entry contains."""
