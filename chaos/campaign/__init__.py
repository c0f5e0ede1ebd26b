"""Failover tests of a real cluster: seeded faults, several workloads, a verdict and a report."""
