"""Configuration: frozen options, the file format, and command line flags."""

from broker.config.options import Options

__all__ = ["Options"]
