"""A consumer as every replica has it: configuration, ack floor, pending messages."""
