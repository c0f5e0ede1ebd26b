"""Publish entries, as every replica applies them: in session order, a block or a row at a time.

Owns: publish sessions, writers, open atomic and fast batches, and the choice between storing a
block in one call and going through it row by row.
May not touch: how a message is checked and stored (message_writer.py), clocks.
Spec: docs/decisions/0001-one-publish-through-all-layers.md; NATS ADR-30 (transform on ingest)."""

from __future__ import annotations

from struct import Struct as Packing

from broker.jetstream.commands.publish_entry import (
    NO_NOTES,
    PUBLISH_PREFIX,
    PUBLISH_PREFIX_SIZE,
    Bounds,
    Notes,
    decode_notes,
)
from broker.jetstream.commands.stream_commands import CommandKind
from broker.jetstream.commands.writer_entry import read_writer_entry
from broker.jetstream.config import Discard, Retention
from broker.jetstream.errors import JetStreamError
from broker.jetstream.incoming_message import IncomingMessage
from broker.jetstream.publish.atomic_batch import publish_member
from broker.jetstream.publish.checks import (
    EXPECTED_SUBJECT,
    HEADER_BYTES_MAX,
    RECORD_BYTES_MAX,
)
from broker.jetstream.publish.fast_batch import (
    FastBatches,
    advance,
    continues_batches,
    marks_by_row,
    publish_fast,
)
from broker.jetstream.publish.message_writer import MessageWriter
from broker.jetstream.publish.open_batches import AtomicBatches
from broker.jetstream.publish.sessions import (
    OutOfOrder,
    PublishResult,
    RowAnswer,
    Sessions,
    Stored,
)
from broker.jetstream.publish.writers import WriterAnswer, Writers
from broker.store.block.codec import Block, BlockBuilder
from broker.store.block.columns import has_status
from broker.subjects import Steps, finish, has_wildcard
from broker.subjects.mapping import Mapping

# Kinds of entries that may need `prepare`.
PUBLISHING = (CommandKind.PUBLISH, CommandKind.NOTED_PUBLISH, CommandKind.WRITER_BATCH)
Exceptions = list[tuple[int, RowAnswer]]
LONG_SUBJECT = 256  # bytes on average: mapping such subjects takes longer than storing them
# Of a block (block_format.py): rows, size of all subjects, size of all headers.
_SIZES = Packing("<8xI12xII")


class PublishApplier:
    def __init__(self, writer: MessageWriter) -> None:
        self.sessions = Sessions()
        self.atomic_batches = AtomicBatches()
        self.fast_batches = FastBatches()
        self.writers = Writers()
        self._writer = writer
        self._mapped: tuple[bytes, list[bytes]] | None = None  # subjects of the next entry

    def is_long(self, entry: bytes) -> bool:
        """Whether `prepare` is needed: a message may expect the last sequence of a subject pattern,
        or long subjects have to be mapped."""
        rows, subjects_len, headers_len = _SIZES.unpack_from(_raw_of(entry)[0])
        if self._writer.transform is not None and subjects_len > LONG_SUBJECT * rows:
            return True
        return headers_len > 0 and EXPECTED_SUBJECT in entry

    def prepare(self, entry: bytes) -> Steps[None]:
        """Search for these last sequences, map these subjects."""
        block, store = _block_of(entry)[0], self._writer.store
        if self._writer.transform is not None:
            time_ns = max(PUBLISH_PREFIX.unpack_from(entry)[2], store.last_time)
            mapped = yield from _mapped_subjects(self._writer.transform, block, time_ns)
            self._mapped = entry, mapped
        if not block.headers_len or EXPECTED_SUBJECT not in entry:
            return
        for row in range(block.rows):
            named = IncomingMessage.of(b"", block.headers(row), b"", 0).named
            pattern = named.get(EXPECTED_SUBJECT, b"")
            if has_wildcard(pattern):
                yield from store.last_matches.steps(pattern)
            yield

    def apply(self, entry: bytes) -> PublishResult | OutOfOrder:
        """Apply a PUBLISH or NOTED_PUBLISH entry. A repeated batch has no effect."""
        _, rules, time_ns, from_node, session, batch_no = PUBLISH_PREFIX.unpack_from(entry)
        if from_node:
            answer = self.sessions.admit(from_node=from_node, session=session, batch_no=batch_no)
            if answer is not None:
                return answer
        block, notes = _block_of(entry)
        # The wall clock of a new leader may be behind; the times of a stream never go back.
        time_ns = max(time_ns, self._writer.store.last_time)
        block = self._transformed(entry, block, time_ns)
        first, count, exceptions = self._publish(block, time_ns, notes, rules)
        result = PublishResult(from_node, session, batch_no, first, count, exceptions)
        if from_node:
            self.sessions.remember(result)
        return result

    def apply_writer(self, entry: bytes) -> WriterAnswer:
        """Apply a WRITER_BATCH entry."""
        time_ns, bounds, mark, raw = read_writer_entry(entry)
        rules = PUBLISH_PREFIX.unpack_from(entry)[1]
        time_ns = max(time_ns, self._writer.store.last_time)
        block = self._transformed(entry, Block(raw, verify=False), time_ns)

        def store(skip: int) -> tuple[int, int, object]:
            rest = block if not skip else _without_first(block, skip)
            return self._until_refused(rest, time_ns, bounds, rules)

        return self.writers.apply(mark, block.rows, store)

    def _until_refused(
        self, block: Block, time_ns: int, bounds: Bounds, rules: int
    ) -> tuple[int, int, object]:
        """Store rows until one is refused. Returns the first sequence, how many rows were stored,
        and why the next one was not."""
        writer = self._writer
        if writer.config.duplicate_window > 0:
            writer.dedup.expire(now_ns=time_ns, window_ns=writer.config.duplicate_window)
        if _needs_no_checks(writer, block) and _within(bounds, writer, block):
            return writer.store_block(block, time_ns), block.rows, None
        first = writer.store.last_seq + 1
        for row in range(block.rows):
            message = IncomingMessage.of(
                block.subject(row), block.headers(row), block.data(row), time_ns, rules
            )
            refused = writer.publish(message, bounds)
            if isinstance(refused, JetStreamError):
                return first, row, refused
        return first, block.rows, None

    def _publish(
        self, block: Block, time_ns: int, notes: Notes, rules: int
    ) -> tuple[int, int, Exceptions]:
        """Returns the first sequence, how many sequences were taken in row order, and the rows
        that have another answer."""
        writer = self._writer
        config = writer.config
        if config.duplicate_window > 0:
            writer.dedup.expire(now_ns=time_ns, window_ns=config.duplicate_window)
        if _needs_no_checks(writer, block) and _within(notes.bounds, writer, block):
            spans = notes.spans
            if not spans:
                return writer.store_block(block, time_ns), block.rows, []
            if config.allow_batched and continues_batches(self.fast_batches, spans, block.rows):
                first = writer.store_block(block, time_ns)
                return first, block.rows, advance(self.fast_batches, spans, first, time_ns)
        return self._row_by_row(block, time_ns, notes, rules)

    def _row_by_row(
        self, block: Block, time_ns: int, notes: Notes, rules: int
    ) -> tuple[int, int, Exceptions]:
        writer = self._writer
        first = writer.store.last_seq + 1
        taken = 0
        exceptions: Exceptions = []
        bounds, marks = notes.bounds, marks_by_row(notes.spans)
        for row in range(block.rows):
            message = IncomingMessage.of(
                block.subject(row), block.headers(row), block.data(row), time_ns, rules
            )
            mark = marks.get(row)
            if mark is not None:
                replies = publish_fast(writer, self.fast_batches, message, mark, bounds)
                exceptions.extend((row, reply) for reply in replies)
                continue
            if message.named.get(b"Nats-Batch-Id"):
                answer: RowAnswer | None = publish_member(
                    writer, self.atomic_batches, message, bounds
                )
            else:
                answer = writer.publish(message, bounds)
            if answer is None:
                seq = writer.store.last_seq
                if seq == first + taken:
                    taken += 1
                    continue
                answer = Stored(seq)  # a batch was committed in between: no longer consecutive
            exceptions.append((row, answer))
        return first, taken, exceptions

    def _transformed(self, entry: bytes, block: Block, time_ns: int) -> Block:
        """The block with its subjects mapped."""
        mapping = self._writer.transform
        prepared, self._mapped = self._mapped, None
        if mapping is None:
            return block
        if prepared is not None and prepared[0] is entry:
            subjects = prepared[1]
        else:
            subjects = finish(_mapped_subjects(mapping, block, time_ns))
        if all(subject == block.subject(row) for row, subject in enumerate(subjects)):
            return block
        made = BlockBuilder()
        for row, subject in enumerate(subjects):
            made.append(subject, block.headers(row), block.data(row))
        return Block(made.build(seal=False), verify=False)

    # -- time -------------------------------------------------------------------------------------

    def expire(self, now_ns: int) -> None:
        """Drop expired message ids and idle batches."""
        writer = self._writer
        if writer.config.duplicate_window > 0:
            writer.dedup.expire(now_ns=now_ns, window_ns=writer.config.duplicate_window)
        for batch_id in self.atomic_batches.expire(now_ns) if self.atomic_batches else ():
            writer.effects.batch_abandoned(batch_id, "timeout")
        self.fast_batches.expire(now_ns)

    def next_expiry(self) -> int | None:
        """When the next batch becomes idle, None if none is open."""
        times = (self.atomic_batches.next_expiry(), self.fast_batches.next_expiry())
        return min((at for at in times if at is not None), default=None)


def _raw_of(entry: bytes) -> tuple[memoryview, Notes]:
    """The bytes of the block."""
    if entry[0] == CommandKind.WRITER_BATCH:
        return read_writer_entry(entry)[3], NO_NOTES
    rest = memoryview(entry)[PUBLISH_PREFIX_SIZE:]
    if entry[0] == CommandKind.NOTED_PUBLISH:
        notes, rest = decode_notes(rest)
        return rest, notes
    return rest, NO_NOTES


def _block_of(entry: bytes) -> tuple[Block, Notes]:
    raw, notes = _raw_of(entry)
    return Block(raw, verify=False), notes


def _without_first(block: Block, skip: int) -> Block:
    rest = BlockBuilder()
    rest.append_block(block, skip=set(range(skip)))
    return Block(rest.build(seal=False), verify=False)


def _within(bounds: Bounds | None, writer: MessageWriter, block: Block) -> bool:
    if bounds is None:
        return True
    store = writer.store
    return store.bytes + store.sizing.of_block(block) <= min(bounds.account, bounds.server)


def _needs_no_checks(writer: MessageWriter, block: Block) -> bool:
    """True if every row of the block is certain to be stored and has no header with an effect."""
    config, store = writer.config, writer.store
    if config.sealed or (config.retention is Retention.INTEREST and not writer.interest.wants_all):
        return False
    if config.allow_msg_counter or (config.allow_msg_schedules and writer.schedules.any_of(block)):
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


def _mapped_subjects(mapping: Mapping, block: Block, time_ns: int) -> Steps[list[bytes]]:
    """The mapped subject of every row. A random mapping is seeded with the time and the row, so
    that every replica gets the same result."""
    subjects: list[bytes] = []
    for name, start, stop in block.subject_runs():
        if mapping.varies:
            subjects += [mapping(name, seed=time_ns + row) or name for row in range(start, stop)]
        else:
            subjects += [mapping(name) or name] * (stop - start)
        yield
    return subjects
