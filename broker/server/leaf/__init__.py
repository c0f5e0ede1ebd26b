"""Leaf node connections, in both roles: this server as the hub, and this server as the leaf."""
