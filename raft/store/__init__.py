"""The logs of all groups of a node on disk, in one RocksDB."""

from raft.store.log_store import LogStore

__all__ = ["LogStore"]
