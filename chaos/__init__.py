"""Faults on purpose: against real processes with a checker, and in `sim` all simulated."""
