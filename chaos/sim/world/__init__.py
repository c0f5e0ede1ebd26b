"""Simulated machines: event loops on virtual time, links, disks. Whole nodes run on them."""
