"""Messages with an end of their own: when each is to go, or that age must not touch it.

Owns: the times, by sequence, and their order.
May not touch: the messages; what is removed for other reasons is noticed later. All of it follows
from the stored messages, so it is no state of its own: a replica may know entries of messages
that are gone, and acts no differently for it.
Spec: JetStream sheet 3.10: stored time + TTL; `never` also protects from max_age."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import Final

NEVER: Final = 2**63 - 1
_FORGOTTEN_MAX: Final = 1024  # entries of removed messages, beyond as many as there are messages

Stored = Callable[[int], bool]


class Deadlines:
    """`stored`, where it is asked for, tells whether a sequence is still there."""

    __slots__ = ("_ageing_from", "_due", "_heap", "_never")

    def __init__(self) -> None:
        self._due: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []
        self._never: dict[int, None] = {}
        self._ageing_from = 0  # below it, whatever is stored is protected

    def __len__(self) -> int:
        return len(self._due)

    def set(self, seq: int, due_ns: int) -> None:
        self._due[seq] = due_ns
        if due_ns == NEVER:
            self._never[seq] = None
        else:
            heappush(self._heap, (due_ns, seq))

    def next_due(self, stored: Stored) -> int | None:
        """When the next message is to go."""
        heap = self._heap
        while heap and not stored(heap[0][1]):
            self._due.pop(heappop(heap)[1], None)
        return heap[0][0] if heap else None

    def take_due(self, now_ns: int) -> list[int]:
        """Sequences whose time has come, ascending; they are forgotten here."""
        found: list[int] = []
        while self._heap and self._heap[0][0] <= now_ns:
            seq = heappop(self._heap)[1]
            del self._due[seq]
            found.append(seq)
        return sorted(found)

    def protected(self) -> Iterable[int]:
        """Sequences that age must not touch."""
        return self._never

    def first_ageing(self, first_seq: int, following: Callable[[int], int]) -> int:
        """The first stored sequence that max_age may take, 0 when there is none.

        `following(seq)` is the first stored one at or above `seq`, or 0."""
        if not self._never:
            return first_seq
        seq = following(max(first_seq, self._ageing_from))
        while seq in self._never:
            self._ageing_from = seq + 1
            seq = following(seq + 1)
        return seq

    # -- to disk and back -------------------------------------------------------------------------

    def of_range(self, first_seq: int, last_seq: int) -> list[int]:
        """Sequence and time, one pair after another, of the entries in the range."""
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

    def prune(self, messages: int, stored: Stored) -> None:
        """Forget messages that are gone, if they have become many."""
        if len(self._due) > 2 * messages + _FORGOTTEN_MAX:
            self._replace((seq, due) for seq, due in self._due.items() if stored(seq))

    def clear(self) -> None:
        self._replace(())
        self._ageing_from = 0

    def _replace(self, entries: Iterable[tuple[int, int]]) -> None:
        self._due = dict(entries)
        self._heap = [(due, seq) for seq, due in self._due.items() if due != NEVER]
        heapify(self._heap)
        self._never = {seq: None for seq, due in self._due.items() if due == NEVER}
