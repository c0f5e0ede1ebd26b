"""Account quotas and server limits, and the bytes that count against them."""
