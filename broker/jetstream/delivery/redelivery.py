"""When a delivered message is due again, and the queue of those that are.

Owns: ack deadlines and the redelivery queue of one consumer, on its leader.
May not touch: ack state, messages; a sequence it does not know is ignored.
Spec: JetStream redelivery: ack_wait, backoff, NAK delays; expired entries queue by sequence."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

COMPACT_AT_LEAST = 4096


class Redelivery:
    """A sequence is in one of two places: awaited (`_due`), or queued to go out again.

    Because the ack wait is the same for all first deliveries, their deadlines rise in the order
    of sending: a run of messages costs one entry of a FIFO. Deadlines out of that order (NAK
    delays, later steps of a backoff) are in a heap. An entry of either counts only if `_due`
    still names its deadline.
    """

    __slots__ = ("_ack_wait_ns", "_backoff", "_due", "_fifo", "_fifo_size", "_heap", "_queue",
                 "_queued")  # fmt: skip

    def __init__(self, *, ack_wait_ns: int, backoff: Sequence[int]) -> None:
        self._ack_wait_ns = ack_wait_ns
        self._backoff = tuple(backoff)
        self._due: dict[int, int] = {}
        self._fifo: deque[tuple[int, Sequence[int]]] = deque()
        self._fifo_size = 0
        self._heap: list[tuple[int, int]] = []
        self._queue: deque[int] = deque()
        self._queued: set[int] = set()

    @property
    def queued(self) -> int:
        """How many wait to be delivered again now."""
        return len(self._queued)

    def sent(self, seqs: Sequence[int], now: int) -> None:
        """First deliveries, made now."""
        deadline = now + self._wait_ns(1)
        self._due.update(dict.fromkeys(seqs, deadline))
        if self._fifo and self._fifo[-1][0] > deadline:  # a clock that went back, a shorter wait
            for seq in seqs:
                heappush(self._heap, (deadline, seq))
            return
        self._fifo.append((deadline, seqs))
        self._fifo_size += len(seqs)
        if self._fifo_size > 2 * len(self._due) + COMPACT_AT_LEAST:
            self._compact()

    def sent_again(self, seq: int, now: int, *, deliveries: int) -> None:
        """Delivered for the `deliveries`-th time, or its ack wait starts anew (in progress)."""
        if seq in self._queued:
            return
        if self._backoff:
            self.later(seq, now + self._wait_ns(deliveries))
        else:
            self.sent((seq,), now)

    def later(self, seq: int, at: int) -> None:
        """Due at `at`, whatever was planned for it (a NAK with a delay)."""
        self._queued.discard(seq)
        self._due[seq] = at
        heappush(self._heap, (at, seq))

    def again(self, seqs: Iterable[int]) -> None:
        """Queue for delivery now, behind what is queued."""
        for seq in seqs:
            if seq not in self._queued:
                self._due.pop(seq, None)
                self._queued.add(seq)
                self._queue.append(seq)

    def forget(self, seqs: Iterable[int]) -> None:
        """Acked, given up or gone."""
        due = self._due
        for seq in seqs:
            due.pop(seq, None)
        if self._queued:
            self._queued.difference_update(seqs)
            if not self._queued:
                self._queue.clear()

    def clear(self) -> None:
        self._due.clear()
        self._fifo.clear()
        self._fifo_size = 0
        self._heap.clear()
        self._queue.clear()
        self._queued.clear()

    def peek(self) -> int:
        """The next queued sequence, or 0."""
        queue, queued = self._queue, self._queued
        while queue:
            if queue[0] in queued:
                return queue[0]
            queue.popleft()
        return 0

    def pop(self) -> None:
        """Take away what `peek` gave."""
        self._queued.discard(self._queue.popleft())

    def expired(self, now: int) -> list[int]:
        """Sequences whose wait is over, rising. They are in neither place until told where."""
        due, found = self._due, []
        while self._fifo and self._fifo[0][0] <= now:
            deadline, seqs = self._fifo.popleft()
            self._fifo_size -= len(seqs)
            for seq in seqs:
                if due.get(seq) == deadline:
                    del due[seq]
                    found.append(seq)
        while self._heap and self._heap[0][0] <= now:
            deadline, seq = heappop(self._heap)
            if due.get(seq) == deadline:
                del due[seq]
                found.append(seq)
        found.sort()
        return found

    def next_deadline(self) -> int | None:
        """Never later than the next expiry; earlier only by entries that have been settled."""
        if not self._due:
            self._fifo.clear()
            self._fifo_size = 0
            self._heap.clear()
            return None
        deadlines = [self._fifo[0][0]] if self._fifo else []
        if self._heap:
            deadlines.append(self._heap[0][0])
        return min(deadlines)

    def sent_at(self, seq: int, *, deliveries: int) -> int:
        """When it was delivered last, or said to be in progress; 0 when that is not known."""
        deadline = self._due.get(seq, 0)
        return deadline - self._wait_ns(deliveries) if deadline else 0

    def reconfigure(self, *, ack_wait_ns: int, backoff: Sequence[int]) -> None:
        """Later deliveries wait as given here; what is awaited keeps its deadline."""
        self._ack_wait_ns = ack_wait_ns
        self._backoff = tuple(backoff)

    def _wait_ns(self, deliveries: int) -> int:
        if self._backoff:
            return self._backoff[min(deliveries, len(self._backoff)) - 1]
        return self._ack_wait_ns

    def _compact(self) -> None:
        """Drop settled entries: one slow message must not keep a record of all that passed it."""
        due = self._due
        kept: deque[tuple[int, Sequence[int]]] = deque()
        size = 0
        for deadline, seqs in self._fifo:
            alive = [seq for seq in seqs if due.get(seq) == deadline]
            if alive:
                kept.append((deadline, alive))
                size += len(alive)
        self._fifo, self._fifo_size = kept, size
        self._heap = [entry for entry in self._heap if due.get(entry[1]) == entry[0]]
        heapify(self._heap)
