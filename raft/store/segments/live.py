"""Records that are still needed: what is asked before a segment is freed.

Owns: the vocabulary between the keeper of segments and the owner of the logs.
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
    """Which records are alive: known to the owner of the log. Called with the log's lock held."""

    def live_in(self, segment: LogSegment) -> list[LiveRecord]: ...

    def is_alive(self, record: LiveRecord) -> bool: ...

    def was_moved(self, record: LiveRecord, position: int) -> None: ...

    def is_damaged(self, record: LiveRecord) -> None:
        """It cannot be read. Raises SegmentBusy: tell it again."""

    def flush_all(self) -> None:
        """What is written is on disk, and so are the promises that were cleared."""


def live_bytes(records: Sequence[LiveRecord]) -> int:
    return sum(record.size for record in records)
