"""Fault injection: against real processes with a checker, and simulated in `sim`."""
