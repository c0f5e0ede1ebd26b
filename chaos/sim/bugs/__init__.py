"""Bugs that are planted in the broker to prove that the simulator finds them."""
