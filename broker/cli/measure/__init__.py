"""`jetraft bench`: measurements, and how their figures are shown."""
