"""Live orders through Spark: sums per minute and shop, exact while nodes and executors die."""
