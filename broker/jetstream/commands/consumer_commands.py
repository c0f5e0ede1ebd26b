"""What the leader tells its replicas about consumers: deliveries made, acknowledgements taken.

Owns: the layout of Progress and Acks, and the run coding of sequences inside them.
May not touch: consumer state; these are values.
Spec: one Progress and one Acks entry per stream and loop turn, whatever the number of consumers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec


class ConsumerProgress(msgspec.Struct, array_like=True, frozen=True, omit_defaults=True):
    """Deliveries of one consumer since its last Progress."""

    consumer: str
    # Index of the entry that created or last reset the consumer. What was in flight when the name
    # was created anew, or the numbers went back, must not reach the new life.
    epoch: int
    consumer_seq: int  # deliveries made so far
    stream_seq: int  # highest stream sequence delivered
    # First deliveries that await an ack, as flat triples (stream seq, consumer seq, count): both
    # sequences rise by one inside a triple. Empty for ack none, where nothing is pending.
    first: Sequence[int] = ()
    # Deliveries made again, as flat pairs (stream seq, how often it has been delivered now).
    again: Sequence[int] = ()


class ConsumerAcks(msgspec.Struct, array_like=True, frozen=True, omit_defaults=True):
    """Acknowledgements of one consumer. A termination is an acknowledgement here."""

    consumer: str
    epoch: int
    acked: Sequence[int] = ()  # runs of stream sequences: flat pairs (first, count)
    up_to: Sequence[int] = ()  # ack all: (stream seq, consumer seq), or empty
    exhausted: Sequence[int] = ()  # delivered max_deliver times and given up; runs as above
    # (consumer seq, stream seq) of the leader's ack floor, after a removal: replicas saw it before
    # the deliveries and acks that the leader had made first, and might end elsewhere.
    floor: Sequence[int] = ()


class DeliveryProgress(msgspec.Struct, array_like=True, frozen=True):
    now_ns: int
    of: Sequence[ConsumerProgress]


class Acks(msgspec.Struct, array_like=True, frozen=True):
    """`of` may be empty: such an entry only orders a confirmation behind earlier ones."""

    now_ns: int
    of: Sequence[ConsumerAcks]


def to_runs(sequences: Iterable[int]) -> list[int]:
    """Flat pairs (first, count) that cover the sequences, ascending, repeats dropped."""
    runs: list[int] = []
    end = -1
    for sequence in sorted(sequences):
        if sequence == end:
            runs[-1] += 1
            end += 1
        elif sequence > end:
            runs += (sequence, 1)
            end = sequence + 1
    return runs


def from_runs(runs: Sequence[int]) -> list[int]:
    """The sequences of flat pairs (first, count), in order."""
    sequences: list[int] = []
    for i in range(0, len(runs), 2):
        sequences.extend(range(runs[i], runs[i] + runs[i + 1]))
    return sequences
