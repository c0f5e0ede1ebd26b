"""Mirrors and sources: reading another stream, here or in another cluster."""
