"""One stream's Raft group on this node, and what only its leader does.

Start reading with `replica.py` (the state machine of one group), then `leadership.py` (delivery at
the leader). `replica_table.py` lists the replicas of this node, `membership.py` opens and drops
them, `reconfiguration.py` and `member_changes.py` move a group to other nodes, `checkpoints.py` and
`state_flush.py` write applied state to disk."""
