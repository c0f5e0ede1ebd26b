"""Commands by which the leader replicates consumer state: deliveries made, acks received.

Owns: the layout of DeliveryProgress and Acks, and the run-length coding of sequences in them.
May not touch: consumer state; these are values.
Spec: at most one DeliveryProgress and one Acks entry per stream and loop turn, however many
consumers the stream has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec


class ConsumerProgress(msgspec.Struct, array_like=True, frozen=True, omit_defaults=True):
    """Deliveries of one consumer since its last ConsumerProgress."""

    consumer: str
    # Index of the entry that created or last reset the consumer. Entries that were in flight when
    # the consumer was recreated or reset carry an older epoch and are ignored.
    epoch: int
    consumer_seq: int  # deliveries made so far
    stream_seq: int  # highest stream sequence delivered
    # First deliveries that await an ack, as flat triples (stream seq, consumer seq, count): both
    # sequences rise by one inside a triple. Empty for ack none, where nothing is pending.
    first: Sequence[int] = ()
    # Redeliveries, as flat pairs (stream seq, number of deliveries so far).
    again: Sequence[int] = ()


class ConsumerAcks(msgspec.Struct, array_like=True, frozen=True, omit_defaults=True):
    """Acknowledgements of one consumer. A termination counts as an acknowledgement."""

    consumer: str
    epoch: int
    acked: Sequence[int] = ()  # runs of stream sequences: flat pairs (first, count)
    up_to: Sequence[int] = ()  # ack all: (stream seq, consumer seq), or empty
    exhausted: Sequence[int] = ()  # delivered max_deliver times, not redelivered; runs as above
    # (consumer seq, stream seq) of the leader's ack floor after a removal. Other replicas apply the
    # removal before the deliveries and acks that the leader made earlier, so without this their
    # floor could differ.
    floor: Sequence[int] = ()


class DeliveryProgress(msgspec.Struct, array_like=True, frozen=True):
    now_ns: int
    of: Sequence[ConsumerProgress]


class Acks(msgspec.Struct, array_like=True, frozen=True):
    """`of` may be empty: the entry then only makes a confirmation wait for earlier acks."""

    now_ns: int
    of: Sequence[ConsumerAcks]


def to_runs(sequences: Iterable[int]) -> list[int]:
    """The sequences as flat pairs (first, count), ascending, without duplicates."""
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
    """The sequences that flat pairs (first, count) denote, in order."""
    sequences: list[int] = []
    for i in range(0, len(runs), 2):
        sequences.extend(range(runs[i], runs[i] + runs[i + 1]))
    return sequences
