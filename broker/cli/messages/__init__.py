"""`pub`, `sub`, `request`, `reply`, `rtt`, `info` and `events`: plain messages."""
