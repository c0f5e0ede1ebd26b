"""Workloads of consumers: pull, push, retention, changes, watches."""
