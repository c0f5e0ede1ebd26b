"""What a node has on disk: the logs of all groups in segment files, and a RocksDB for the state."""

from raft.store.log_store import LogStore

__all__ = ["LogStore"]
