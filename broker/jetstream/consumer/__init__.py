"""A consumer as every replica holds it: configuration, position, ack floor, pending messages."""
