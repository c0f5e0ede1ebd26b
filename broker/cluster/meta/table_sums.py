"""Sums derived from the table of streams, and the few streams that need attention.

Owns: these numbers, updated with each change, so that no request has to walk the table.
May not touch: the table (assignments.py), sockets, clocks, Raft."""

from __future__ import annotations

from collections import Counter
from typing import Generic, Protocol, TypeVar

from broker.jetstream.config import StreamConfig
from broker.jetstream.config.limits import reserved_bytes
from broker.jetstream.config.stream_config import Storage


class SummedAssignment(Protocol):
    """An assignment, as far as it is counted."""

    @property
    def account(self) -> str: ...
    @property
    def config(self) -> StreamConfig: ...
    @property
    def group(self) -> int: ...
    @property
    def holders(self) -> set[int]: ...
    @property
    def is_settled(self) -> bool: ...


A = TypeVar("A", bound=SummedAssignment)


class TableSums(Generic[A]):
    def __init__(self) -> None:
        self.count = 0
        self.load: Counter[int] = Counter()  # replicas by node
        self.unsettled: dict[int, A] = {}  # moving, or with too few replicas; by group
        # The mirrors of a stream, by account and name of the stream, then by group.
        self._mirrors: dict[tuple[str, str], dict[int, A]] = {}
        self._reserved: Counter[tuple[str, Storage]] = Counter()  # bytes by account and storage

    def add(self, assignment: A) -> None:
        self._count(assignment, 1)
        if not assignment.is_settled:
            self.unsettled[assignment.group] = assignment
        if (mirror := assignment.config.mirror) is not None:
            mirrors = self._mirrors.setdefault((assignment.account, mirror.name), {})
            mirrors[assignment.group] = assignment

    def subtract(self, assignment: A) -> None:
        self._count(assignment, -1)
        self.unsettled.pop(assignment.group, None)
        if (mirror := assignment.config.mirror) is not None:
            mirrors = self._mirrors[assignment.account, mirror.name]
            del mirrors[assignment.group]
            if not mirrors:
                del self._mirrors[assignment.account, mirror.name]

    def _count(self, assignment: A, sign: int) -> None:
        self.count += sign
        for node in assignment.holders:
            self.load[node] += sign
        config = assignment.config
        key = (assignment.account, config.storage)
        self._reserved[key] += sign * reserved_bytes([config], config.storage)
        if not self._reserved[key]:
            del self._reserved[key]

    def holders(self) -> set[int]:
        """The nodes that hold a replica of any stream, or should hold one."""
        return {node for node, count in self.load.items() if count}

    def mirrors_of(self, account: str, name: str) -> list[A]:
        """The mirrors in the account of a stream that is here, or elsewhere; the oldest first."""
        mirrors = self._mirrors.get((account, name), {})
        return [mirrors[group] for group in sorted(mirrors)]

    def reserved(self, account: str) -> dict[Storage, int]:
        """Bytes that the account's streams reserve, on all their replicas."""
        return {kind: self._reserved[account, kind] for kind in Storage}

    def reserved_in_all(self) -> dict[Storage, int]:
        sums = dict.fromkeys(Storage, 0)
        for (_, kind), size in self._reserved.items():
            sums[kind] += size
        return sums
