"""Taking published messages into a stream: one by one, and the way without looking at each.

Owns: which way a block goes, and what each of its rows is answered.
May not touch: sessions and the log (stream.py), the clock; `time_ns` was stamped by the leader.
Spec: JetStream sheet 2.2 (transform on ingest), 3.3.

A block in which no message needs a check is stored in one call; others go message by message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.jetstream.commands.publish_entry import NO_NOTES, Bounds, Notes
from broker.jetstream.config import Discard, Retention
from broker.jetstream.publish.atomic_batch import publish_member
from broker.jetstream.publish.checks import HEADER_BYTES_MAX, RECORD_BYTES_MAX
from broker.jetstream.publish.fast_batch import advance, goes_on, marks_by_row, publish_fast
from broker.jetstream.publish.message import IncomingMessage
from broker.jetstream.publish.sessions import (
    Duplicate,
    OutOfOrder,
    PublishResult,
    RowAnswer,
    Said,
    Staged,
    Stored,
)
from broker.jetstream.publish.single_message import publish_single
from broker.jetstream.publish.store_message import store_block
from broker.store.block.block import Block, BlockBuilder
from broker.store.columns import has_status
from broker.subjects.mapping import Mapping

if TYPE_CHECKING:
    from broker.jetstream.stream.stream import Stream

__all__ = ["Duplicate", "OutOfOrder", "PublishResult", "Said", "Staged", "Stored", "publish_block"]

Exceptions = list[tuple[int, RowAnswer]]


def publish_block(
    stream: Stream, block: Block, time_ns: int, notes: Notes = NO_NOTES
) -> tuple[int, int, Exceptions]:
    """First sequence, number of sequences taken in row order, and the rows that are answered
    in another way."""
    if stream.config.duplicate_window > 0:
        stream.dedup.expire(now_ns=time_ns, window_ns=stream.config.duplicate_window)
    if stream.transform is not None:
        block = _transformed(stream.transform, block, time_ns)
    if _needs_no_checks(stream, block) and _within(notes.bounds, stream, block):
        if not notes.spans:
            return store_block(stream, block, time_ns), block.rows, []
        if goes_on(stream, notes.spans, block.rows):
            first = store_block(stream, block, time_ns)
            return first, block.rows, advance(stream, notes.spans, first, time_ns)
    return _row_by_row(stream, block, time_ns, notes)


def _row_by_row(
    stream: Stream, block: Block, time_ns: int, notes: Notes
) -> tuple[int, int, Exceptions]:
    first = stream.store.last_seq + 1
    taken = 0
    exceptions: Exceptions = []
    bounds, marks = notes.bounds, marks_by_row(notes.spans)
    for row in range(block.rows):
        message = IncomingMessage.of(
            block.subject(row), block.headers(row), block.data(row), time_ns
        )
        mark = marks.get(row)
        if mark is not None:
            exceptions.extend((row, told) for told in publish_fast(stream, message, mark, bounds))
            continue
        if message.named.get(b"Nats-Batch-Id"):
            answer: RowAnswer | None = publish_member(stream, message, bounds)
        else:
            answer = publish_single(stream, message, bounds)
        if answer is None:
            seq = stream.store.last_seq
            if seq == first + taken:
                taken += 1
                continue
            answer = Stored(seq)  # a batch came between: the reader could not count up to it
        exceptions.append((row, answer))
    return first, taken, exceptions


def _within(bounds: Bounds | None, stream: Stream, block: Block) -> bool:
    if bounds is None:
        return True
    store = stream.store
    return store.bytes + store.sizing.of_block(block) <= min(bounds.account, bounds.server)


def _needs_no_checks(stream: Stream, block: Block) -> bool:
    """No row of the block can be refused, skipped or mean more than to be stored."""
    config, store = stream.config, stream.store
    if config.sealed or (config.retention is Retention.INTEREST and not stream.wants_all):
        return False
    if config.allow_msg_counter or (config.allow_msg_schedules and stream.schedules.any_of(block)):
        return False
    if block.headers_len and (
        block.headers_len > HEADER_BYTES_MAX or block.any_nats_header() or has_status(block)
    ):
        return False
    if config.max_msg_size >= 0 and block.max_row_size > config.max_msg_size:
        return False
    if block.nbytes > RECORD_BYTES_MAX:
        return False
    if config.discard is Discard.NEW:
        if config.discard_new_per_subject:
            return False
        if 0 < config.max_msgs < store.messages + block.rows:
            return False
        if 0 < config.max_bytes < store.bytes + store.sizing.of_block(block):
            return False
    return True


def _transformed(mapping: Mapping, block: Block, time_ns: int) -> Block:
    """The block with every subject the mapping takes carried over."""
    runs = block.subject_runs()
    if not mapping.varies and all(mapping(name) in (None, name) for name, _, _ in runs):
        return block
    made = BlockBuilder()
    for name, start, stop in runs:
        for row in range(start, stop):
            subject = mapping(name, seed=time_ns + row) or name
            made.append(subject, block.headers(row), block.data(row))
    return Block(made.build(seal=False), verify=False)
