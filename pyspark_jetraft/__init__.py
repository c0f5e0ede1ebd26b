"""Lets Spark find `format("jetraft")` by itself.

Owns: the name. Spark imports every installed top-level package called pyspark_* and registers its
`DefaultSource`, so users need no register call.
May not touch: anything but the data source it exports."""

from broker.spark.source import JetRaftDataSource

__all__ = ["DefaultSource"]


class DefaultSource(JetRaftDataSource):
    """The class Spark looks for."""
