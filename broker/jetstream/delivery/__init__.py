"""Delivery on the leader of a stream: receivers, acks, redelivery, flow control.

Start with `engine.py`. Everything here is volatile and rebuilt when leadership changes."""
