"""What accounts and this server may store, and what they do store."""
