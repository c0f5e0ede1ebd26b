"""Raft alone, simulated: the core, its rounds and its log under faults, without a broker.

Begin with `run.py` (a seed from start to end) and `cluster.py`. Many more seeds per second than
whole brokers (chaos/sim/broker)."""
