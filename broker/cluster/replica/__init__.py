"""One stream's Raft group on this node, and what only its leader does."""
