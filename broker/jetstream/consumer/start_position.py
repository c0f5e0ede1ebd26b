"""Deliver policies: where a consumer starts, and where a reset may move it.

Owns: the start position of each deliver policy.
May not touch: consumer state; these functions return a position.
Spec: JetStream deliver policies; consumer reset (error 10204)."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from pyroaring import BitMap64

from broker.jetstream.config import ConsumerConfig, DeliverPolicy
from broker.jetstream.consumer.stream_protocol import MessageSource
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.subjects import Steps

SORTED_TOGETHER = 8192  # sequences sorted in one step
TAKEN_OUT_SINGLY = 256  # sequences removed one by one; more are removed in one pass


def sequences(found: Iterable[int] = ()) -> array[int]:
    """An array, which takes eight bytes per sequence: a consumer may start with one sequence for
    every subject of its stream."""
    return array("Q", found)


def take_out(known: array[int], gone: Sequence[int]) -> None:
    """Remove the sequences of `gone` from these ascending sequences. Removing one moves all that
    follow it, so many are removed in one pass."""
    if len(gone) > TAKEN_OUT_SINGLY:
        known[:] = (BitMap64(known) - BitMap64(sequences(gone))).to_array()
        return
    for seq in gone:
        at = bisect_left(known, seq)
        if at < len(known) and known[at] == seq:
            del known[at]


@dataclass(slots=True)
class Start:
    """The first sequence to consider.

    For last_per_subject: `initial` is delivered first, then everything above `resume_after`.
    """

    seq: int
    initial: array[int] = field(default_factory=sequences)
    resume_after: int = 0


def start_of(
    config: ConsumerConfig, store: MessageSource, *, max_msgs_per_subject: int
) -> Steps[Start]:
    first, after_last = max(store.first_seq, 1), store.last_seq + 1
    match config.deliver_policy:
        case DeliverPolicy.ALL:
            return Start(first)
        case DeliverPolicy.LAST:
            last = (yield from store.last_matching_steps(config.filters)) if store.messages else 0
            return Start(max(last, 1) if store.messages else first)
        case DeliverPolicy.NEW:
            return Start(after_last)
        case DeliverPolicy.BY_START_SEQUENCE:
            return Start(max(config.opt_start_seq, first))
        case DeliverPolicy.BY_START_TIME:
            return Start(store.first_at_time(config.opt_start_time or 0) or after_last)
        case DeliverPolicy.LAST_PER_SUBJECT:
            if max_msgs_per_subject == 1:
                return Start(first)  # every stored message is the last of its subject
            return (yield from _last_per_subject(config, store))
        case unknown:
            assert_never(unknown)


def _last_per_subject(config: ConsumerConfig, store: MessageSource) -> Steps[Start]:
    parts: dict[int, list[int]] = {}  # by position, to sort a few sequences at a time
    for subjects in store.subject_parts(*config.filters or (b">",)):
        for seq in map(store.last_of_subject, subjects):
            if seq:
                parts.setdefault(seq // SORTED_TOGETHER, []).append(seq)
        yield
    if not parts:  # no match: starting at the last message or after it is the same
        return Start(store.last_seq if store.messages else store.last_seq + 1)
    initial = sequences()
    for position in sorted(parts):
        initial.extend(sorted(parts.pop(position)))
        yield
    return Start(initial[0], initial, store.last_seq)


def reset_start(
    config: ConsumerConfig, store: MessageSource, seq: int, *, floor: int
) -> int | JetStreamError:
    """The sequence a reset moves to. 0 means just above the ack floor."""
    if seq == 0:
        return floor + 1
    match config.deliver_policy:
        case DeliverPolicy.ALL:
            return seq
        case DeliverPolicy.BY_START_SEQUENCE:
            if seq < config.opt_start_seq:
                return _refused("below start seq")
            return seq
        case DeliverPolicy.BY_START_TIME:
            earliest = store.first_at_time(config.opt_start_time or 0) or store.last_seq + 1
            if seq < earliest:
                return _refused("below start time")
            return seq
        case _:
            return _refused("not allowed")


def _refused(reason: str) -> JetStreamError:
    return JetStreamError.of(ErrCode.CONSUMER_INVALID_RESET, err=reason)
