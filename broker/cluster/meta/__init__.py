"""The meta group: which streams exist, with which configuration, on which nodes.

Start reading with `assignments.py` (the replicated table) and `meta_group.py` (its Raft group).
`founding.py` decides which nodes form the group, `placement.py` which of them hold a new stream."""
