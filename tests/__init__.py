"""Tests. A package, so that tests/raft and tests/chaos never stand for raft and chaos."""
