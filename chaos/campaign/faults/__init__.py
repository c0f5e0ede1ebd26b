"""The faults that a campaign injects into its nodes."""
