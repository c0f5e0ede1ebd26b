"""The system account: `$SYS` requests and events."""
