"""The subject index of a stream (Cython, with a Python twin as specification)."""
