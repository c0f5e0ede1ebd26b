"""All groups of one node: rounds of write, flush, send and apply."""
