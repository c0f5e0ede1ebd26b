"""Live records: the interface that tells which records of a segment are still needed.

Owns: the types shared by the allocator of segments and the owner of the logs.
May not touch: files.
Spec: docs/decisions/0019-a-log-of-our-own.md, "Freeing"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from raft.store.segments.log import LogSegment


@dataclass(slots=True)
class LiveRecord:
    group: int
    index: int  # 0: the group record
    position: int
    size: int


class LiveRecords(Protocol):
    """Implemented by the owner of the logs. Called with the log's lock held."""

    def live_in(self, segment: LogSegment) -> list[LiveRecord]: ...

    def is_alive(self, record: LiveRecord) -> bool: ...

    def was_moved(self, record: LiveRecord, position: int) -> None: ...

    def is_damaged(self, record: LiveRecord) -> None:
        """The record cannot be read. Raises SegmentBusy: call again later."""

    def flush_all(self) -> None:
        """Flush what is written, and the cleared promises, to disk."""


def live_bytes(records: Sequence[LiveRecord]) -> int:
    return sum(record.size for record in records)
