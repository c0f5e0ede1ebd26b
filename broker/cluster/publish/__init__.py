"""A publish on its way to the stream's leader, and its ack on the way back."""
