"""Atomic batches: members are staged one by one, then stored together or not at all.

Owns: the answer to each member, and the checks of a commit.
May not touch: where members wait (open_batches.py).
Spec: NATS ADR-50 (atomic batch publishing). A commit checks each member against the state before
the batch and against what earlier members of the same batch will change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from broker.jetstream.commands.publish_entry import Bounds
from broker.jetstream.config import Discard, StreamConfig
from broker.jetstream.config.api_levels import REQUIRED_LEVEL_HEADER, applied_level_is_met
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.incoming_message import IncomingMessage, parse_ttl
from broker.jetstream.publish.checks import (
    BATCH_ID_BYTES_MAX,
    HEADER_BYTES_MAX,
    compare_sequence,
    exceeds_record,
    refusal_in_batch,
    rollup_failed,
    wrong_rollup,
    wrong_subject_sequence,
)
from broker.jetstream.publish.counters import add_up, wrong_increment
from broker.jetstream.publish.message_writer import MessageWriter
from broker.jetstream.publish.open_batches import MEMBERS_MAX, AtomicBatches, OpenBatch
from broker.jetstream.publish.sessions import RowAnswer, Staged, Stored
from broker.jetstream.publish.stream_limits import not_stored
from broker.jetstream.schedules.schedules import wrong_schedule

_END: Final = b"eob"  # end of batch: a commit whose own message is not a member
_OUT_OF_RANGE: Final = 2**63


@dataclass(slots=True)
class _StagedChanges:
    """What the members checked so far will change."""

    subjects: dict[bytes, int] = field(default_factory=dict)  # number of messages
    schedules: dict[bytes, bool] = field(default_factory=dict)  # whether the last is a schedule
    ids: set[bytes] = field(default_factory=set)
    totals: dict[bytes, int] = field(default_factory=dict)  # of counters
    messages: int = 0
    nbytes: int = 0


def publish_member(
    writer: MessageWriter,
    batches: AtomicBatches,
    message: IncomingMessage,
    bounds: Bounds | None = None,
) -> RowAnswer:
    """Stage the member, or commit its batch, or refuse the member and abandon the batch."""
    refused = _refused_at_once(writer, message, bounds)
    if refused is not None:
        return refused
    named = message.named
    batch_id, seq = named[b"Nats-Batch-Id"], _sequence(named[b"Nats-Batch-Sequence"])
    commit = named.get(b"Nats-Batch-Commit")
    batch = batches.get(batch_id)
    members = seq - 1 if commit == _END else seq
    if batch is None:
        if seq != 1:
            return _too_large() if members > MEMBERS_MAX else _incomplete()
        batch = batches.begin(batch_id, message.time_ns)
        if batch is None:
            return JetStreamError(ErrCode.ATOMIC_PUBLISH_TOO_MANY_INFLIGHT)
    failed = _failed(writer, batches, message, batch, seq=seq, members=members)
    if failed is not None:
        batches.end(batch)
        return failed
    message.drop_header(REQUIRED_LEVEL_HEADER)
    if commit != _END:
        member = (message.subject, message.headers, message.data)
        batches.add(batch, member, message.time_ns)
    if commit is None:
        return Staged()
    batches.end(batch)
    return _commit(writer, batch, message, ended=commit == _END)


def _refused_at_once(
    writer: MessageWriter, message: IncomingMessage, bounds: Bounds | None
) -> JetStreamError | None:
    """Refusals that leave an open batch as it is."""
    refused = refusal_in_batch(writer.config, writer.store, message, bounds)
    if refused is not None:
        return refused
    if not writer.config.allow_atomic:
        return JetStreamError(ErrCode.ATOMIC_PUBLISH_DISABLED)
    if len(message.named[b"Nats-Batch-Id"]) > BATCH_ID_BYTES_MAX:
        return JetStreamError(ErrCode.ATOMIC_PUBLISH_INVALID_BATCH_ID)
    if not message.named.get(b"Nats-Batch-Sequence", b"").isdigit():
        return JetStreamError(ErrCode.ATOMIC_PUBLISH_MISSING_SEQ)
    return None


def _failed(
    writer: MessageWriter,
    batches: AtomicBatches,
    message: IncomingMessage,
    batch: OpenBatch,
    *,
    seq: int,
    members: int,
) -> JetStreamError | None:
    """Why this member ends the batch without a commit, None if it does not."""
    abandoned = writer.effects.batch_abandoned
    commit = message.named.get(b"Nats-Batch-Commit")
    if commit not in (None, b"1", _END):
        return JetStreamError(ErrCode.ATOMIC_PUBLISH_INVALID_BATCH_COMMIT)
    if not applied_level_is_met(message.named.get(REQUIRED_LEVEL_HEADER), message.rules):
        abandoned(batch.id, "unsupported")
        return JetStreamError(ErrCode.REQUIRED_API_LEVEL)
    if len(batch.members) + 1 != seq or (seq == 1 and commit == _END):
        abandoned(batch.id, "incomplete")
        return _incomplete()
    if members > MEMBERS_MAX:
        abandoned(batch.id, "large")
        return _too_large()
    if batches.full():
        return JetStreamError(ErrCode.ATOMIC_PUBLISH_TOO_MANY_INFLIGHT)
    return None


def _commit(
    writer: MessageWriter, batch: OpenBatch, last: IncomingMessage, *, ended: bool
) -> RowAnswer:
    """The time and the rules are those of the last message."""
    staged = _StagedChanges()
    checked: list[IncomingMessage] = []
    for subject, headers, data in batch.members:
        message = IncomingMessage.of(subject, headers, data, last.time_ns, last.rules)
        refused = _refused(writer, message, staged)
        if refused is not None:
            return refused
        checked.append(message)
    if ended:
        checked[-1].set_header(b"Nats-Batch-Commit", b"1")
    for message in checked:
        writer.store_message(message)
    batch_id = batch.id.decode(errors="replace")
    return Stored(writer.store.last_seq, batch=batch_id, count=len(checked))


def _refused(
    writer: MessageWriter, message: IncomingMessage, staged: _StagedChanges
) -> JetStreamError | None:
    config, store = writer.config, writer.store
    if message.named.get(b"Nats-Expected-Last-Msg-Id"):
        return JetStreamError.of(
            ErrCode.ATOMIC_PUBLISH_UNSUPPORTED_HEADER_BATCH, header="Nats-Expected-Last-Msg-Id"
        )
    too_large = exceeds_record(config, message)
    if too_large is not None:
        return too_large
    if len(message.headers) > HEADER_BYTES_MAX:
        return JetStreamError(ErrCode.STREAM_HEADER_EXCEEDS_MAXIMUM)
    refused = (
        wrong_increment(config, message)
        or _wrong_headers(writer, message, staged)
        or _counted(writer, message, staged)
        or _wrong_expectation(writer, message, staged)
        or wrong_schedule(config, message, staged.schedules, store.last_row)
        or _wrong_rollup(config, message, staged)
    )
    if refused is not None:
        return refused
    staged.subjects[message.subject] = staged.subjects.get(message.subject, 0) + 1
    staged.schedules[message.subject] = bool(message.named.get(b"Nats-Schedule"))
    staged.messages += 1
    staged.nbytes += store.sizing.of(message.subject, message.headers, message.data)
    return _limit_refusal(writer, message, staged)


def _wrong_headers(
    writer: MessageWriter, message: IncomingMessage, staged: _StagedChanges
) -> JetStreamError | None:
    named, config = message.named, writer.config
    if named.get(b"Nats-Expected-Stream", b"") not in (b"", config.name.encode()):
        return JetStreamError(ErrCode.STREAM_NOT_MATCH)
    ttl = named.get(b"Nats-TTL")
    if ttl is not None:
        if not config.allow_msg_ttl:
            return JetStreamError(ErrCode.MESSAGE_TTL_DISABLED)
        if parse_ttl(ttl) is None:
            return JetStreamError(ErrCode.MESSAGE_TTL_INVALID)
    if message.msg_id and config.duplicate_window > 0:
        if message.msg_id in staged.ids or writer.dedup.find(message.msg_id):
            return JetStreamError(ErrCode.ATOMIC_PUBLISH_CONTAINS_DUPLICATE_MESSAGE)
        staged.ids.add(message.msg_id)
    if b"Nats-Stream-Source" in named:
        return JetStreamError(ErrCode.MESSAGE_SOURCE_HDR_NOT_ALLOWED)
    return None


def _counted(
    writer: MessageWriter, message: IncomingMessage, staged: _StagedChanges
) -> JetStreamError | None:
    if not writer.config.allow_msg_counter:
        return None
    refused = add_up(message, staged.totals, writer.store.last_row)
    if refused is None and 0 <= writer.config.max_msg_size < message.size:
        return JetStreamError(ErrCode.STREAM_MESSAGE_EXCEEDS_MAXIMUM)
    return refused


def _wrong_expectation(
    writer: MessageWriter, message: IncomingMessage, staged: _StagedChanges
) -> JetStreamError | None:
    named, store = message.named, writer.store
    expected = named.get(b"Nats-Expected-Last-Sequence")
    if expected is not None:
        refused = compare_sequence(expected, store.last_seq + staged.messages)
        if refused is not None:
            return refused
        if staged.messages:
            return JetStreamError(ErrCode.STREAM_WRONG_LAST_SEQUENCE_CONSTANT)
    if b"Nats-Expected-Last-Subject-Sequence" in named:
        other = named.get(b"Nats-Expected-Last-Subject-Sequence-Subject")
        if (other or message.subject) in staged.subjects:
            return JetStreamError(ErrCode.STREAM_WRONG_LAST_SEQUENCE_CONSTANT)
    return wrong_subject_sequence(store, message)


def _wrong_rollup(
    config: StreamConfig, message: IncomingMessage, staged: _StagedChanges
) -> JetStreamError | None:
    refused = wrong_rollup(config, message)
    if refused is not None:
        return refused
    rollup = message.named.get(b"Nats-Rollup", b"").lower()
    if rollup == b"sub" and message.subject in staged.subjects:
        return rollup_failed("batch rollup sub invalid")
    if rollup == b"all" and staged.messages:
        return rollup_failed("batch rollup all invalid")
    return None


def _limit_refusal(
    writer: MessageWriter, message: IncomingMessage, staged: _StagedChanges
) -> JetStreamError | None:
    """Why discard new refuses this member, given the members so far. Unlike for a single message, a
    member that would replace the oldest of its subject needs extra room."""
    config, store = writer.config, writer.store
    if config.discard is not Discard.NEW:
        return None
    if 0 < config.max_msgs < store.messages + staged.messages:
        return not_stored("maximum messages exceeded")
    if 0 < config.max_bytes < store.bytes + staged.nbytes:
        return not_stored("maximum bytes exceeded")
    if config.discard_new_per_subject and b"Nats-Rollup" not in message.named:
        entry = store.index.get(message.subject)
        present = entry.count if entry is not None else 0
        if present + staged.subjects[message.subject] > config.max_msgs_per_subject:
            return not_stored("maximum messages per subject exceeded")
    return None


def _sequence(text: bytes) -> int:
    return int(text) if len(text) < 20 else _OUT_OF_RANGE


def _incomplete() -> JetStreamError:
    return JetStreamError(ErrCode.ATOMIC_PUBLISH_INCOMPLETE_BATCH)


def _too_large() -> JetStreamError:
    return JetStreamError.of(ErrCode.ATOMIC_PUBLISH_TOO_LARGE_BATCH, size=MEMBERS_MAX)
