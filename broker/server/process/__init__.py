"""What the process needs besides NATS itself: log, pid and ports files, reload, loop lag."""
