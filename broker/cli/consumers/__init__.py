"""`jetraft consumer`: consumers and what they deliver."""
