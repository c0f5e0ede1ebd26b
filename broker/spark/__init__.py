"""The Spark data source. It runs in Spark's processes and imports only `broker.scan`."""
