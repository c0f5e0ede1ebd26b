"""What is done to the nodes of a campaign."""
