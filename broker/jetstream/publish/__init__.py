"""A publish as every replica applies it: checks, dedup window, batches, counters, TTL."""
