"""NATS keys (nkeys.py) and signed claims (jwt.py), without any knowledge of permissions."""
