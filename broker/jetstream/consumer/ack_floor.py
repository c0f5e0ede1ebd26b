"""The ack floor of a consumer, and what is delivered and unacknowledged above it.

Owns: the delivered pair, the ack floor, the pending set, delivery counts. The replicated Consumer
holds one, changed by log entries; delivery on the leader holds a live copy that runs ahead of it.
May not touch: time, messages, receivers.
Spec: JetStream consumer info (delivered, ack_floor) and ack policies."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence, Set


class AckFloor:
    """Sequences only. `stream_seq` and `consumer_seq` are those of the last delivery.

    Invariants: the floor never falls except by `reset`; floor <= delivered; stream sequences
    are added to `pending` in ascending order, once each, and are never added again.
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
        # Pending sequences in ascending order; settled entries are dropped only when they reach
        # the front. `pending` cannot be used for this: finding the first key of a dict walks over
        # every entry that was deleted before it.
        self._order: deque[int] = deque()

    def deliver(self, first: int, last: int, *, consumer_seq: int) -> None:
        """Stream sequences first..last were delivered, the first of them as `consumer_seq`."""
        sequences = list(range(first, last + 1))  # the same numbers everywhere: each takes memory
        end = consumer_seq + len(sequences)
        numbers = sequences if consumer_seq == first else range(consumer_seq, end)
        self.pending.update(zip(sequences, numbers, strict=True))
        self._order.extend(sequences)
        self.delivered_up_to(stream_seq=last, consumer_seq=end - 1)

    def deliver_again(self, stream_seq: int, *, deliveries: int) -> None:
        """It was delivered again, now for the `deliveries`-th time."""
        if stream_seq in self.pending:
            self.redelivered[stream_seq] = deliveries

    def delivered_up_to(self, *, stream_seq: int, consumer_seq: int) -> None:
        """Deliveries have reached these sequences. `pending` does not change."""
        self.consumer_seq = max(self.consumer_seq, consumer_seq)
        self.stream_seq = max(self.stream_seq, stream_seq)

    def deliver_unacked(self, *, stream_seq: int, consumer_seq: int) -> None:
        """Ack policy none: a delivered message is settled immediately."""
        self.delivered_up_to(stream_seq=stream_seq, consumer_seq=consumer_seq)
        self._floor_to_delivered()

    def deliveries(self, stream_seq: int) -> int:
        return self.redelivered.get(stream_seq, 1)

    def ack(self, sequences: Iterable[int]) -> list[int]:
        """Explicit acks. Returns those that were open (pending or exhausted). If none was, nothing
        changes: such acks are not replicated."""
        pending, settled = self.pending, []
        for sequence in sequences:
            if pending.pop(sequence, None) is not None:
                settled.append(sequence)
            elif sequence in self.exhausted:
                self.exhausted.remove(sequence)
                settled.append(sequence)
        if settled:
            self._forget_counts(settled)
            self._raise_floor()
        return settled

    def ack_up_to(self, stream_seq: int, *, consumer_seq: int) -> list[int]:
        """Ack policy all: settle everything at or below. The floor becomes this delivery. Returns
        the sequences that were open."""
        stream_seq = min(stream_seq, self.stream_seq)
        if stream_seq <= self.floor_stream_seq:
            return []
        settled = [sequence for sequence in self.exhausted if sequence <= stream_seq]
        self.exhausted.difference_update(settled)
        settled += self._take_pending(stream_seq)
        self._forget_counts(settled)
        consumer_seq = min(consumer_seq, self.consumer_seq)
        self.floor_stream_seq = stream_seq
        self.floor_consumer_seq = max(self.floor_consumer_seq, consumer_seq)
        settled.sort()
        return settled

    def _take_pending(self, stream_seq: int) -> list[int]:
        """Those at or below, ascending, which are no longer pending. Mostly these are all: one ack
        may settle a hundred thousand, and then nothing is looked at one by one."""
        pending, order = self.pending, self._order
        if order and order[-1] <= stream_seq:
            taken = list(pending)
            pending.clear()
            order.clear()
            return taken
        taken = []
        while order and order[0] <= stream_seq:
            sequence = order.popleft()
            if pending.pop(sequence, None) is not None:
                taken.append(sequence)
        return taken

    def exhaust(self, sequences: Iterable[int]) -> None:
        """Delivered max_deliver times: no longer pending, but not acked. The floor does not move
        until the next ack, so that a reset to the floor delivers these messages again."""
        for sequence in sequences:
            if self.pending.pop(sequence, None) is not None:
                self.exhausted.add(sequence)

    def remove(self, sequences: Sequence[int], known: Set[int] | None = None) -> list[int]:
        """These were removed from the stream. Returns those that were pending. `known` may hold the
        same sequences as a set: then the cost is at most one step per tracked message."""
        pending, exhausted = self.pending, self.exhausted
        if known is not None and len(pending) + len(exhausted) < len(sequences):
            sequences = sorted(one for one in (*pending, *exhausted) if one in known)
        removed = []
        for sequence in sequences:
            if pending.pop(sequence, None) is not None:
                removed.append(sequence)
            elif sequence in exhausted:
                exhausted.remove(sequence)
                self.redelivered.pop(sequence, None)
        self._forget_counts(removed)
        self._raise_floor()
        return removed

    def remove_range(self, first: int, last: int) -> list[int]:
        """Like `remove`, for first..last inclusive; costs at most one step per tracked message."""
        if last - first < len(self.pending) + len(self.exhausted):
            return self.remove(range(first, last + 1))
        tracked = [s for s in (*self.pending, *self.exhausted) if first <= s <= last]
        return self.remove(tracked)

    @property
    def floor(self) -> tuple[int, int]:
        """Consumer sequence and stream sequence."""
        return self.floor_consumer_seq, self.floor_stream_seq

    def raise_floor(self, consumer_seq: int, stream_seq: int) -> None:
        """Raise the floor at least to here. Nothing at or below may be pending."""
        self.floor_consumer_seq = max(self.floor_consumer_seq, consumer_seq)
        self.floor_stream_seq = max(self.floor_stream_seq, stream_seq)

    def pass_over(self, stream_seq: int) -> None:
        """Nothing at or below is left to deliver: move the position without a delivery."""
        self.stream_seq = max(self.stream_seq, stream_seq)
        if not self.pending:
            self._floor_to_delivered()

    def reset(self, stream_seq: int) -> None:
        """Start over above `stream_seq`. Nothing else lowers these numbers."""
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

    def copy(self) -> AckFloor:
        return AckFloor.unpack(self.pack())

    def pack(self) -> tuple[Sequence[int], ...]:
        """Plain values; equal states give equal values."""
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
    def unpack(cls, packed: Sequence[Sequence[int]]) -> AckFloor:
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
        """Raise the floor to just below the lowest pending message. This depends only on packed
        values: a restarted replica must get the same floor as the others."""
        pending, order = self.pending, self._order
        if not pending:
            order.clear()
            self._floor_to_delivered()
            return
        while order[0] not in pending:
            order.popleft()
        lowest = order[0]
        self.raise_floor(pending[lowest] - 1, lowest - 1)

    def _floor_to_delivered(self) -> None:
        self.floor_consumer_seq = self.consumer_seq
        self.floor_stream_seq = self.stream_seq
