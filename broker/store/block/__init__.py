"""The block format: many messages in columns (Cython, with a Python twin as specification)."""
