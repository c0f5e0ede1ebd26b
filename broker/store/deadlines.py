"""Deadlines of messages with a TTL: when each one expires, or that max_age must not remove it.

Owns: the expiry times, by sequence, and their order.
May not touch: the messages; entries of messages that were removed for other reasons are dropped
later.
Spec: NATS ADR-43 (per-message TTL): time stored + TTL; "never" also protects from max_age.

Everything here is derived from the stored messages. Replicas may hold different stale entries, and
must not behave differently because of that."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import Final

NEVER: Final = 2**63 - 1
_STALE_MAX: Final = 1024  # stale entries allowed on top of twice the number of messages
LOOKED_AT: Final = 512  # entries of removed messages that are dropped at a time

IsStored = Callable[[int], bool]


class Deadlines:
    """`stored` arguments return whether a sequence is still stored."""

    __slots__ = ("_aging_from", "_due", "_heap", "_never")

    def __init__(self) -> None:
        self._due: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []
        self._never: dict[int, None] = {}
        self._aging_from = 0  # every stored message below it is protected

    def __len__(self) -> int:
        return len(self._due)

    def set(self, seq: int, due_ns: int) -> None:
        self._due[seq] = due_ns
        if due_ns == NEVER:
            self._never[seq] = None
        else:
            heappush(self._heap, (due_ns, seq))

    def next_due(self, stored: IsStored) -> int | None:
        """When the next message expires, None if none does. If many messages were removed, it may
        be the time of a removed one, whose entry is dropped when that time comes."""
        heap = self._heap
        for _ in range(LOOKED_AT):
            if not heap or stored(heap[0][1]):
                break
            self._due.pop(heappop(heap)[1], None)
        return heap[0][0] if heap else None

    def take_due(self, now_ns: int) -> list[int]:
        """Remove and return the sequences that have expired, ascending."""
        found: list[int] = []
        while self._heap and self._heap[0][0] <= now_ns:
            seq = heappop(self._heap)[1]
            del self._due[seq]
            found.append(seq)
        return sorted(found)

    def protected(self) -> Iterable[int]:
        """Sequences that max_age must not remove."""
        return self._never

    def first_aging(self, first_seq: int, following: Callable[[int], int]) -> int:
        """The first stored sequence that max_age may remove, 0 if there is none.

        `following(seq)` is the first stored sequence at or above `seq`, or 0."""
        if not self._never:
            return first_seq
        seq = following(max(first_seq, self._aging_from))
        while seq in self._never:
            self._aging_from = seq + 1
            seq = following(seq + 1)
        return seq

    # -- persistence ------------------------------------------------------------------------------

    def of_range(self, first_seq: int, last_seq: int) -> list[int]:
        """The entries in the range as a flat list: sequence, time, sequence, time, ..."""
        if not self._due:
            return []
        due = self._due
        found: list[int] = []
        for seq in range(first_seq, last_seq + 1) if last_seq - first_seq < len(due) else due:
            if seq in due and first_seq <= seq <= last_seq:
                found += (seq, due[seq])
        return found

    def load(self, pairs: list[int]) -> None:
        for at in range(0, len(pairs), 2):
            self.set(pairs[at], pairs[at + 1])

    def prune(self, messages: int, stored: IsStored) -> None:
        """Drop stale entries, if there are many."""
        if len(self._due) > 2 * messages + _STALE_MAX:
            self._replace((seq, due) for seq, due in self._due.items() if stored(seq))

    def clear(self) -> None:
        self._replace(())
        self._aging_from = 0

    def _replace(self, entries: Iterable[tuple[int, int]]) -> None:
        self._due = dict(entries)
        self._heap = [(due, seq) for seq, due in self._due.items() if due != NEVER]
        heapify(self._heap)
        self._never = {seq: None for seq, due in self._due.items() if due == NEVER}
