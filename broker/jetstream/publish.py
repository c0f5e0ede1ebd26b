"""Taking published messages into a stream: one by one, and the way without looking at each.

Owns: which way a block goes, and what each of its rows is answered.
May not touch: sessions and the log (stream.py), the clock; `time_ns` was stamped by the leader.
Spec: JetStream sheet 2.2 (transform on ingest), 3.3.

A block in which no message needs a check is stored in one call; others go message by message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.jetstream.batch_commit import publish_member
from broker.jetstream.config import Discard, Retention
from broker.jetstream.counters import value_of
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.message import Message
from broker.jetstream.publish_checks import HEADER_BYTES_MAX, RECORD_BYTES_MAX, full, refusal
from broker.jetstream.sessions import Duplicate, Held, OutOfOrder, PublishResult, RowAnswer, Stored
from broker.jetstream.storing import store_block, store_message
from broker.jetstream.ttl import parse_ttl
from broker.store.block import Block, BlockBuilder
from broker.store.columns import has_status
from broker.subjects.mapping import Mapping

if TYPE_CHECKING:
    from broker.jetstream.stream import Stream

__all__ = ["Duplicate", "Held", "OutOfOrder", "PublishResult", "Stored", "publish_block"]

Exceptions = list[tuple[int, RowAnswer]]


def publish_block(stream: Stream, block: Block, time_ns: int) -> tuple[int, int, Exceptions]:
    """First sequence, number of sequences taken in row order, and the rows that are answered
    in another way."""
    if stream.config.duplicate_window > 0:
        stream.dedup.expire(now_ns=time_ns, window_ns=stream.config.duplicate_window)
    if stream.transform is not None:
        block = _transformed(stream.transform, block, time_ns)
    if _needs_no_checks(stream, block):
        return store_block(stream, block, time_ns), block.rows, []
    first = stream.store.last_seq + 1
    taken = 0
    exceptions: Exceptions = []
    for row in range(block.rows):
        message = Message.of(block.subject(row), block.headers(row), block.data(row), time_ns)
        answer = _publish(stream, message)
        if answer is None:
            seq = stream.store.last_seq
            if seq == first + taken:
                taken += 1
                continue
            answer = Stored(seq)  # a batch came between: the reader could not count up to it
        exceptions.append((row, answer))
    return first, taken, exceptions


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


def _publish(stream: Stream, message: Message) -> RowAnswer | None:
    """Store one message, or say why not. None: it took the next sequence."""
    named = message.named
    if named.get(b"Nats-Batch-Id"):
        return publish_member(stream, message)
    refused = refusal(stream, message)
    if refused is not None:
        return refused
    if stream.wants(message.subject):
        if b"Nats-TTL" in named and parse_ttl(named[b"Nats-TTL"]) is None:
            return JetStreamError(ErrCode.MESSAGE_TTL_INVALID)
        refused = full(stream, message) if stream.config.discard is Discard.NEW else None
        if refused is not None:
            return refused
    store_message(stream, message)
    if stream.config.allow_msg_counter:
        return Stored(stream.store.last_seq, val=value_of(message.data))
    return None
