"""The clustered broker: connects Raft, JetStream and the server.

Start reading with `runtime.py` (what the server starts), then `stream_node.py` and `assembly.py`
(which parts a node has and how they are wired), then `replica/replica.py` (one stream's Raft group
on this node). Each of these may import only those after it: runtime, assembly, stream_node, api,
origins, observe, replica, limits, consumer_requests, publish, meta, peers."""
