"""Whole brokers under simulation: the plan of a seed, its faults, its run and its report."""
