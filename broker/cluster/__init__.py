"""Where Raft, JetStream and the server meet.

Begin with `runtime.py` (what is built), `node.py` (what a node has) and `replica/replica.py` (one
stream's Raft group on this node)."""
