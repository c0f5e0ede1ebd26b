"""Disaster recovery from the command line: one module, dr.py."""
