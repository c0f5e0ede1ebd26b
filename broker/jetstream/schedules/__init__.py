"""Message schedules: their patterns and time zones, the table of schedules, and their firing."""
