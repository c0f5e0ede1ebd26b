"""Whole Raft clusters in one thread on virtual time, each from one seed: real cores, real rounds.

Owns: nothing but its modules; chaos/sim/run.py is the entry point.
May not touch: real clocks, sockets and disks.
Spec: Raft figure 3 (the safety properties) and raft/DIVERGENCE.md."""
