"""What one consumer has delivered and what of it is still unacknowledged.

Owns: the delivered pair, the ack floor, the pending set, delivery counts. The replicated Consumer
holds one, changed by log entries; the leader's Delivery holds a live twin that runs ahead of it.
May not touch: time, messages, who receives them.
Spec: JetStream consumer info (delivered, ack_floor) and ack policies."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence


class AckState:
    """Sequences only. `stream_seq` and `consumer_seq` name the last delivery made.

    Invariants: the floor never falls except by `reset`; floor <= delivered; a stream sequence
    enters `pending` once, in rising order, and leaves it for good.
    """

    __slots__ = (
        "_order",
        "consumer_seq",
        "exhausted",
        "floor_consumer_seq",
        "floor_stream_seq",
        "pending",
        "redelivered",
        "stream_seq",
    )

    def __init__(self, stream_seq: int = 0) -> None:
        self.consumer_seq = 0
        self.stream_seq = stream_seq
        self.floor_consumer_seq = 0
        self.floor_stream_seq = stream_seq
        self.pending: dict[int, int] = {}  # stream seq -> consumer seq of its first delivery
        self.redelivered: dict[int, int] = {}  # stream seq -> deliveries so far, 2 or more
        self.exhausted: set[int] = set()  # given up after max_deliver, not acked, still stored
        # Pending in rising order, entries already gone are dropped when they reach the front:
        # asking a dict for its first key costs a walk over everything deleted before it.
        self._order: deque[int] = deque()

    def deliver(self, first: int, last: int, *, consumer_seq: int) -> None:
        """Stream sequences first..last went out, the first of them as `consumer_seq`."""
        sequences = range(first, last + 1)
        end = consumer_seq + len(sequences)
        self.pending.update(zip(sequences, range(consumer_seq, end), strict=True))
        self._order.extend(sequences)
        self.delivered_up_to(stream_seq=last, consumer_seq=end - 1)

    def deliver_again(self, stream_seq: int, *, deliveries: int) -> None:
        """It went out once more, now for the `deliveries`-th time."""
        if stream_seq in self.pending:
            self.redelivered[stream_seq] = deliveries

    def delivered_up_to(self, *, stream_seq: int, consumer_seq: int) -> None:
        """Deliveries have reached these two, whatever is tracked of them."""
        self.consumer_seq = max(self.consumer_seq, consumer_seq)
        self.stream_seq = max(self.stream_seq, stream_seq)

    def deliver_unacked(self, *, stream_seq: int, consumer_seq: int) -> None:
        """Ack none: whatever was delivered is settled."""
        self.delivered_up_to(stream_seq=stream_seq, consumer_seq=consumer_seq)
        self._floor_to_delivered()

    def deliveries(self, stream_seq: int) -> int:
        return self.redelivered.get(stream_seq, 1)

    def ack(self, sequences: Iterable[int]) -> list[int]:
        """Explicit acks. Those that were open (pending or exhausted) come back."""
        pending, settled = self.pending, []
        for sequence in sequences:
            if pending.pop(sequence, None) is not None:
                settled.append(sequence)
            elif sequence in self.exhausted:
                self.exhausted.remove(sequence)
                settled.append(sequence)
        self._forget_counts(settled)
        self._raise_floor()
        return settled

    def ack_up_to(self, stream_seq: int, *, consumer_seq: int) -> list[int]:
        """Ack all: everything at or below. The floor becomes exactly this delivery."""
        stream_seq = min(stream_seq, self.stream_seq)
        if stream_seq <= self.floor_stream_seq:
            return []
        pending, order = self.pending, self._order
        settled = [sequence for sequence in self.exhausted if sequence <= stream_seq]
        self.exhausted.difference_update(settled)
        while order and order[0] <= stream_seq:
            sequence = order.popleft()
            if pending.pop(sequence, None) is not None:
                settled.append(sequence)
        self._forget_counts(settled)
        consumer_seq = min(consumer_seq, self.consumer_seq)
        self.floor_stream_seq = stream_seq
        self.floor_consumer_seq = max(self.floor_consumer_seq, consumer_seq)
        settled.sort()
        return settled

    def exhaust(self, sequences: Iterable[int]) -> None:
        """Delivered max_deliver times: no longer pending, not acked either. The floor stays until
        the next ack: a reset goes back to it, and so to these."""
        for sequence in sequences:
            if self.pending.pop(sequence, None) is not None:
                self.exhausted.add(sequence)

    def remove(self, sequences: Iterable[int]) -> list[int]:
        """These left the stream: forget them. Those that were pending come back."""
        pending, exhausted = self.pending, self.exhausted
        gone = []
        for sequence in sequences:
            if pending.pop(sequence, None) is not None:
                gone.append(sequence)
            elif sequence in exhausted:
                exhausted.remove(sequence)
                self.redelivered.pop(sequence, None)
        self._forget_counts(gone)
        self._raise_floor()
        return gone

    def remove_range(self, first: int, last: int) -> list[int]:
        """As `remove` for first..last inclusive, at the cost of what is tracked."""
        if last - first < len(self.pending) + len(self.exhausted):
            return self.remove(range(first, last + 1))
        tracked = [s for s in (*self.pending, *self.exhausted) if first <= s <= last]
        return self.remove(tracked)

    @property
    def floor(self) -> tuple[int, int]:
        """Consumer sequence and stream sequence."""
        return self.floor_consumer_seq, self.floor_stream_seq

    def raise_floor(self, consumer_seq: int, stream_seq: int) -> None:
        """At least to here; nothing at or below is pending."""
        self.floor_consumer_seq = max(self.floor_consumer_seq, consumer_seq)
        self.floor_stream_seq = max(self.floor_stream_seq, stream_seq)

    def pass_over(self, stream_seq: int) -> None:
        """Nothing at or below is left to deliver: the position moves without a delivery."""
        self.stream_seq = max(self.stream_seq, stream_seq)
        if not self.pending:
            self._floor_to_delivered()

    def reset(self, stream_seq: int) -> None:
        """Start over above `stream_seq`: the one way for numbers to go back."""
        self.pending.clear()
        self.redelivered.clear()
        self.exhausted.clear()
        self._order.clear()
        self.consumer_seq = self.floor_consumer_seq = 0
        self.stream_seq = self.floor_stream_seq = stream_seq

    def settled(self, stream_seq: int) -> bool:
        """Delivered and no longer open."""
        return (
            stream_seq <= self.stream_seq
            and stream_seq not in self.pending
            and stream_seq not in self.exhausted
        )

    def copy(self) -> AckState:
        return AckState.unpack(self.pack())

    def pack(self) -> tuple[Sequence[int], ...]:
        """Plain values, the same for equal states."""
        pending = sorted(self.pending)
        redelivered = sorted(self.redelivered)
        return (
            (
                self.consumer_seq,
                self.stream_seq,
                self.floor_consumer_seq,
                self.floor_stream_seq,
            ),
            pending,
            [self.pending[sequence] for sequence in pending],
            redelivered,
            [self.redelivered[sequence] for sequence in redelivered],
            sorted(self.exhausted),
        )

    @classmethod
    def unpack(cls, packed: Sequence[Sequence[int]]) -> AckState:
        state = cls()
        numbers, pending, consumer_seqs, redelivered, counts, exhausted = packed
        state.consumer_seq, state.stream_seq = numbers[0], numbers[1]
        state.floor_consumer_seq, state.floor_stream_seq = numbers[2], numbers[3]
        state.pending = dict(zip(pending, consumer_seqs, strict=True))
        state.redelivered = dict(zip(redelivered, counts, strict=True))
        state.exhausted = set(exhausted)
        state._order = deque(pending)
        return state

    def _forget_counts(self, sequences: list[int]) -> None:
        if self.redelivered:
            for sequence in sequences:
                self.redelivered.pop(sequence, None)

    def _raise_floor(self) -> None:
        """To just below the lowest pending entry, if the one above the floor has gone."""
        pending, order = self.pending, self._order
        if not pending:
            order.clear()
            self._floor_to_delivered()
            return
        if order[0] in pending:
            return  # the lowest is still open
        while order[0] not in pending:
            order.popleft()
        lowest = order[0]
        self.raise_floor(pending[lowest] - 1, lowest - 1)

    def _floor_to_delivered(self) -> None:
        self.floor_consumer_seq = self.consumer_seq
        self.floor_stream_seq = self.stream_seq
