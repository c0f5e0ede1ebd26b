"""The logs of all groups on disk, in one RocksDB."""
