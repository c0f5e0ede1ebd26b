"""The Spark data source. It runs in Spark's processes and knows only `broker.scan`."""
