"""The nodes of a campaign and what they run on: networks, disks, conditions."""
