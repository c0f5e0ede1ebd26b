"""What clients do during a campaign, each with a journal and a check."""
