"""The console: a page at the root of the monitoring port, and the way in for its requests."""
