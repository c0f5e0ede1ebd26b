"""One stream as every replica has it: `stream.Stream` applies log entries."""
