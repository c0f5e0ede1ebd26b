"""Redelivery: when the ack wait of a message runs out, and the queue of messages to send again.

Owns: ack deadlines and the redelivery queue of one consumer, on its leader.
May not touch: ack state, messages; an unknown sequence is ignored.
Spec: JetStream redelivery: ack_wait, backoff, NAK delays; expired messages queue by sequence."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

COMPACT_AT_LEAST = 4096


class Redelivery:
    """A sequence is in one of two places: waiting for an ack (`_due`), or queued for redelivery.

    The ack wait is the same for all first deliveries, so their deadlines ascend in the order of
    sending, and a run of messages costs one entry of a FIFO. Deadlines out of that order (NAK
    delays, later steps of a backoff) are in a heap. An entry of either is valid only while `_due`
    holds the same deadline.
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
        """How many are queued for redelivery."""
        return len(self._queued)

    def sent(self, seqs: Sequence[int], now: int) -> None:
        """First deliveries, made now."""
        deadline = now + self._wait_ns(1)
        self._due.update(dict.fromkeys(seqs, deadline))
        if self._fifo and self._fifo[-1][0] > deadline:  # clock stepped back, or a shorter wait
            for seq in seqs:
                heappush(self._heap, (deadline, seq))
            return
        self._fifo.append((deadline, seqs))
        self._fifo_size += len(seqs)
        if self._fifo_size > 2 * len(self._due) + COMPACT_AT_LEAST:
            self._compact()

    def sent_again(self, seq: int, now: int, *, deliveries: int) -> None:
        """Delivered for the `deliveries`-th time, or its ack wait restarts (+WPI)."""
        if seq in self._queued:
            return
        if self._backoff:
            self.schedule(seq, now + self._wait_ns(deliveries))
        else:
            self.sent((seq,), now)

    def schedule(self, seq: int, at: int) -> None:
        """Redeliver at `at`; replaces any earlier deadline (a NAK with a delay)."""
        self._queued.discard(seq)
        self._due[seq] = at
        heappush(self._heap, (at, seq))

    def enqueue(self, seqs: Iterable[int]) -> None:
        """Append to the redelivery queue."""
        for seq in seqs:
            if seq not in self._queued:
                self._due.pop(seq, None)
                self._queued.add(seq)
                self._queue.append(seq)

    def forget(self, seqs: Iterable[int]) -> None:
        """These were acked, given up or removed."""
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
        """Remove the sequence that `peek` returned."""
        self._queued.discard(self._queue.popleft())

    def expired(self, now: int) -> list[int]:
        """Sequences whose ack wait has run out, ascending. They are in neither place afterwards:
        the caller queues them or gives them up."""
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
        """Never later than the next expiry. It may be earlier, if the entry at the front has been
        settled."""
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
        """When it was last delivered or reported as in progress; 0 if unknown."""
        deadline = self._due.get(seq, 0)
        return deadline - self._wait_ns(deliveries) if deadline else 0

    def reconfigure(self, *, ack_wait_ns: int, backoff: Sequence[int]) -> None:
        """For later deliveries; messages already waiting for an ack keep their deadline."""
        self._ack_wait_ns = ack_wait_ns
        self._backoff = tuple(backoff)

    def _wait_ns(self, deliveries: int) -> int:
        if self._backoff:
            return self._backoff[min(deliveries, len(self._backoff)) - 1]
        return self._ack_wait_ns

    def _compact(self) -> None:
        """Drop settled entries, which otherwise pile up behind one message that is not acked. What
        is below all that is due was settled, perhaps by one ack: that needs no look."""
        due = self._due
        lowest = min(due, default=0)
        kept: deque[tuple[int, Sequence[int]]] = deque()
        size = 0
        for deadline, seqs in self._fifo:
            if seqs[-1] < lowest:  # they ascend
                continue
            alive = [seq for seq in seqs if due.get(seq) == deadline]
            if alive:
                kept.append((deadline, alive))
                size += len(alive)
        self._fifo, self._fifo_size = kept, size
        self._heap = [entry for entry in self._heap if due.get(entry[1]) == entry[0]]
        heapify(self._heap)
