"""Raft alone, simulated: the core, its rounds and its log under faults, without a broker.

Start reading with `run.py` (a seed from start to end) and `cluster.py`. Runs many more seeds per
second than the simulation of whole brokers (chaos/sim/broker)."""
