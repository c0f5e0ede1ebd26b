"""The system account: what this server answers and tells there."""
