"""Settings: the frozen options, the file format, and the flags."""

from broker.config.options import Options

__all__ = ["Options"]
