"""The configuration file: its grammar, and one module per block of keys."""
