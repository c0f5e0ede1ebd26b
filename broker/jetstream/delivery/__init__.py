"""Delivery on the leader of a stream: what is sent to whom, acks, redelivery, flow control.

Start with `engine.py`. Everything here is volatile and rebuilt when leadership changes."""
