"""Whole Raft clusters in one thread on virtual time, from one seed.

Owns: nothing but its modules; run.py is the way in.
May not touch: real clocks, sockets and disks.
Spec: ../../raft/DIVERGENCE.md and Raft figure 3 (the safety properties)."""
