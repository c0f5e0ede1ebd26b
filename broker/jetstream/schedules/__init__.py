"""Message schedules: their patterns and time zones, and what happens when one is due."""
