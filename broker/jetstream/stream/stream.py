"""One stream as every replica has it: messages, consumers and sessions, changed by log entries.

Owns: the state of a stream group. `apply` is the only thing that changes it, and two replicas
that have applied the same entries are equal, byte for byte.
May not touch: clocks, dice, sockets, Raft, delivery. Errors are results, not exceptions: a
refused command is part of history too.
Spec: DESIGN sections 4, 5, 7 and 10; JetStream sheet sections 2-4."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final, Self

import msgspec

from broker.jetstream.api.info import DELETED_DETAILS_LIMIT, StreamState
from broker.jetstream.commands import stream_commands as commands
from broker.jetstream.commands.consumer_commands import Acks, DeliveryProgress
from broker.jetstream.commands.publish_notes import NO_NOTES, decode_notes
from broker.jetstream.commands.stream_commands import (
    PUBLISH_PREFIX,
    PUBLISH_PREFIX_SIZE,
    CommandKind,
    CreateConsumer,
    DeleteConsumer,
    DeleteMessage,
    Expire,
    Fire,
    LoadState,
    PauseConsumer,
    Purge,
    ResetConsumer,
    UpdateConfig,
    UpdateConsumer,
)
from broker.jetstream.config import Retention, Storage, StreamConfig
from broker.jetstream.config.consumer_update import is_internal
from broker.jetstream.config.transforms import mapping_of
from broker.jetstream.consumer.stream_protocol import AckingConsumer
from broker.jetstream.errors import JetStreamError
from broker.jetstream.publish.dedup_window import DedupImage, DedupWindow
from broker.jetstream.publish.message import IncomingMessage
from broker.jetstream.publish.open_batches import Batches, OpenBatch
from broker.jetstream.publish.open_fast_batches import FastBatches
from broker.jetstream.publish.publish_block import OutOfOrder, PublishResult, publish_block
from broker.jetstream.publish.republish import Republished, Republisher
from broker.jetstream.publish.sessions import Sessions
from broker.jetstream.publish.ttl import note_deadlines
from broker.jetstream.schedules.fire import fire, firings
from broker.jetstream.schedules.schedules import Schedules
from broker.jetstream.stream import expiry, retention
from broker.jetstream.stream.consumer_protocol import ConsumerMaker, StreamConsumer
from broker.jetstream.stream.consumer_set import change_consumer, create_consumer, delete_consumer
from broker.jetstream.stream.load_state import load_state
from broker.jetstream.stream.record import RECORD_VERSION, StreamRecord, decode_record
from broker.jetstream.stream.removal import delete, purge, purged
from broker.jetstream.stream.sourcing import take_sourced
from broker.store import persistence
from broker.store.block.block import Block
from broker.store.columns import FILE_SIZING, MEMORY_SIZING
from broker.store.compaction import BLOCKS_PER_CHECKPOINT, compact
from broker.store.files import RECORD, BlockFiles, StateBatch, key
from broker.store.messages import MessageStore, PurgePart
from broker.store.segments import BlockCache

_WANTS_KEPT_MAX: Final = 65536
_encode = msgspec.msgpack.Encoder().encode


class Stream:
    """`consumers` is what makes and reloads consumers; without it there can be none."""

    def __init__(
        self,
        config: StreamConfig,
        *,
        created_ns: int,
        store: MessageStore,
        consumers: ConsumerMaker | None = None,
    ) -> None:
        self.config = config
        self.created_ns = created_ns
        self.store = store
        self.consumers: dict[str, StreamConsumer] = {}
        self.dedup = DedupWindow()
        self.sessions = Sessions()
        self.last_msg_id = b""  # of the last message stored, empty when it had none
        self.sources: dict[str, int] = {}  # how far each was read, also those of the past
        self.batches = Batches()
        self.fast_batches = FastBatches()
        self.schedules = Schedules()
        self.republished: list[Republished] | None = None  # a list while somebody takes them
        self.given_up: list[tuple[bytes, str]] = []  # batches, for who takes the republished
        self.applied = 0
        self._compactions_due = 0
        self.maker = consumers
        self._wants: dict[bytes, bool] = {}
        self._compile()
        store.remember_trails(config.max_msgs_per_subject)
        if config.first_seq > 1:
            store.skip_to(config.first_seq)

    @classmethod
    def open(
        cls,
        config: StreamConfig,
        *,
        created_ns: int,
        files: BlockFiles,
        consumers: ConsumerMaker | None = None,
        cache: BlockCache | None = None,
    ) -> Self:
        """The stream as of its last checkpoint, or a new one. Raises BlockDamaged."""
        sizing = MEMORY_SIZING if config.storage is Storage.MEMORY else FILE_SIZING
        store = MessageStore(files, sizing=sizing, cache=cache)
        raw = files.get(RECORD, 0)
        if raw is None:
            return cls(config, created_ns=created_ns, store=store, consumers=consumers)
        record = decode_record(raw)
        stream = cls(record.config, created_ns=created_ns, store=store, consumers=consumers)
        persistence.load(store, record.store)
        stream.dedup = DedupWindow.load(record.dedup, files)
        stream.batches = Batches.load(files)
        stream._take_over(record)
        return stream

    # -- numbers ----------------------------------------------------------------------------------

    @property
    def last_time(self) -> int:
        """Time of the newest message ever stored: no later one may be stamped earlier."""
        return self.store.last_time

    def state(self, *, subjects_filter: bytes = b"", deleted_details: bool = False) -> StreamState:
        store = self.store
        subjects: dict[str, int] = {}
        if subjects_filter:
            for subject in store.subjects_matching(subjects_filter):
                entry = store.index.get(subject)
                if entry is not None:
                    subjects[subject.decode(errors="replace")] = entry.count
        deleted = store.deleted_sequences(DELETED_DETAILS_LIMIT) if deleted_details else ()
        return StreamState(
            messages=store.messages,
            bytes=store.bytes,
            first_seq=store.first_seq if store.last_seq else 0,
            first_ts=store.first_time,
            last_seq=store.last_seq,
            last_ts=store.last_time,
            num_subjects=store.num_subjects,
            subjects=subjects,
            num_deleted=store.num_deleted,
            deleted=deleted,
            consumer_count=sum(not is_internal(c.config) for c in self.consumers.values()),
        )

    def next_expiry(self, now: int) -> int | None:
        """When the leader should propose Expire; not before `now`."""
        due = expiry.next_expiry(self)
        return None if due is None else max(due, now)

    def due_commands(self, now: int) -> list[commands.AnyCommand]:
        """What the leader proposes when that time has come."""
        fired = firings(self, now) if self.schedules else None
        return [Expire(now)] if fired is None else [Expire(now), fired]

    # -- applying ---------------------------------------------------------------------------------

    def apply(self, index: int, data: bytes) -> object:
        """Take the entry at `index`. The result is for whoever proposed it."""
        self.applied = index
        kind = data[0]
        if kind in (CommandKind.PUBLISH, CommandKind.NOTED_PUBLISH):
            result: object = self._publish(data)
        elif kind == CommandKind.MIRROR_BATCH:
            block = Block(memoryview(data)[PUBLISH_PREFIX_SIZE:], verify=False)
            result = self._mirror(block)
        elif kind == CommandKind.SOURCE_BATCH:
            result = take_sourced(self, data)
        else:
            result = self._command(index, commands.decode(data))
        if self.consumers:
            self._tell_removals()
            if kind == CommandKind.PURGE and purged(result):
                for consumer in self.consumers.values():
                    consumer.purged(self.store.first_seq)
        return result

    def advanced(self, index: int) -> None:
        """An entry that is none of ours (a new leader's first) was applied."""
        self.applied = index

    def _publish(self, data: bytes) -> PublishResult | OutOfOrder:
        kind, time_ns, origin, session, batch_no = PUBLISH_PREFIX.unpack_from(data)
        if origin:
            answer = self.sessions.admit(origin=origin, session=session, batch_no=batch_no)
            if answer is not None:
                return answer
        rest, notes = memoryview(data)[PUBLISH_PREFIX_SIZE:], NO_NOTES
        if kind == CommandKind.NOTED_PUBLISH:
            notes, rest = decode_notes(rest)
        block, now_ns = Block(rest, verify=False), max(time_ns, self.store.last_time)
        first, count, exceptions = publish_block(self, block, now_ns, notes)
        result = PublishResult(origin, session, batch_no, first, count, exceptions)
        if origin:
            self.sessions.remember(result)
        return result

    def _mirror(self, block: Block) -> int:
        known = self.store.last_seq
        stored = self.store.append_sequenced(block)
        if self.config.allow_msg_ttl:
            note_deadlines(block, self.store.deadlines, above=known)
        if self.config.allow_msg_schedules:
            self.schedules.note_block(block, above=known)
        retention.enforce_limits(self, block.subject_summary())
        return stored

    def _command(self, index: int, command: commands.AnyCommand) -> object:
        match command:
            case DeliveryProgress():
                for progress in command.of:
                    consumer = self.consumers.get(progress.consumer)
                    if consumer is not None:
                        consumer.apply_progress(progress, now_ns=command.now_ns)
                return None
            case Acks():
                for acks in command.of:
                    consumer = self.consumers.get(acks.consumer)
                    if consumer is not None:
                        consumer.apply_acks(acks, now_ns=command.now_ns)
                return None
            case CreateConsumer():
                return create_consumer(self, command, index=index)
            case DeleteConsumer():
                return delete_consumer(self, command)
            case UpdateConsumer() | PauseConsumer() | ResetConsumer():
                return change_consumer(self, command, index=index)
            case _:
                return self._message_command(index, command)

    def _message_command(
        self, index: int, command: Expire | Fire | LoadState | Purge | DeleteMessage | UpdateConfig
    ) -> int | PurgePart | JetStreamError | None:
        match command:
            case Expire():
                return expiry.expire(self, command.now_ns)
            case Fire():
                return fire(self, command)
            case LoadState():
                load_state(self, command, index=index)
                return None
            case Purge():
                return purge(self, command)
            case DeleteMessage():
                return delete(self, command)
            case UpdateConfig():
                self._configure(command.config)
                return None

    # -- messages leave ---------------------------------------------------------------------------

    def _configure(self, config: StreamConfig) -> None:
        before, self.config = self.config, config
        self._wants.clear()
        self._compile()
        if not config.allow_batched:
            self.fast_batches.clear()
        self.store.remember_trails(config.max_msgs_per_subject)
        retention.enforce_all_limits(self)
        if before.retention is not config.retention:
            retention.drop_without_interest(self)

    def _compile(self) -> None:
        """What follows from the configuration alone."""
        config = self.config
        self.transform = mapping_of(config.subject_transform)
        mapping = mapping_of(config.republish)
        self._republisher: Republisher | None = None
        if mapping is not None and config.republish is not None:
            name, only = config.name.encode(), config.republish.headers_only
            self._republisher = Republisher(name, mapping, only)

    @property
    def republishes(self) -> bool:
        return self._republisher is not None and self.republished is not None

    def republish(self, message: IncomingMessage, *, seq: int, before: int) -> None:
        """Called after a message was stored, where somebody takes what is republished."""
        if self._republisher is not None and self.republished is not None:
            told = self._republisher.told(message, seq=seq, before=before)
            if told is not None:
                self.republished.append(told)

    def abandoned(self, batch_id: bytes, reason: str) -> None:
        """A batch was given up before its commit: told where somebody leads."""
        if self.republished is not None:
            self.given_up.append((batch_id, reason))

    def _tell_removals(self) -> None:
        removed = self.store.take_removals()
        if not removed:
            return
        single = [first for first, last in removed if first == last]
        for consumer in self.consumers.values():
            for first, last in removed:
                if first < last:
                    consumer.removed_range(first, last)
            if single:
                consumer.removed(single)

    # -- consumers --------------------------------------------------------------------------------

    def wants(self, subject: bytes) -> bool:
        """Is a message on the subject kept? Interest streams keep only what some consumer takes."""
        if self.config.retention is not Retention.INTEREST:
            return True
        wanted = self._wants.get(subject)
        if wanted is None:
            if len(self._wants) >= _WANTS_KEPT_MAX:
                self._wants.clear()
            wanted = any(consumer.wants(subject) for consumer in self.consumers.values())
            self._wants[subject] = wanted
        return wanted

    @property
    def wants_all(self) -> bool:
        """Does some consumer take every subject?"""
        return any(not consumer.filters for consumer in self.consumers.values())

    def consumer_acked(self, consumer: AckingConsumer, seqs: Sequence[int]) -> None:
        """Called by a consumer while it applies: it has no need of these any more."""
        retention.settle(self, consumer, seqs)
        self.store.take_removals()  # whoever wanted them has settled them: nothing to tell

    def consumers_changed(self) -> None:
        """Some came or went, or want other subjects."""
        self._wants.clear()
        self.store.track_removals(on=bool(self.consumers))

    # -- to disk, to other replicas ---------------------------------------------------------------

    def needs_checkpoint(self) -> bool:
        return persistence.needs_checkpoint(self.store)

    def overdue(self) -> bool:
        return persistence.overdue(self.store)

    def work_ahead(self) -> bool:
        """A part of what the next checkpoint writes; False when nothing is left to do."""
        if not persistence.work_ahead(self.store):
            due = self._compactions_due > 0 and compact(self.store)
            self._compactions_due = self._compactions_due - 1 if due else 0
            return due
        return True

    def checkpoint(self, batch: StateBatch) -> int:
        """Queue everything that changed, with the record for `applied`; returns its size.

        The caller writes the batch before anything is read or applied. Without that the
        replica must stop."""
        group = self.store.segments.files.group
        self._compactions_due = BLOCKS_PER_CHECKPOINT
        size = persistence.checkpoint(self.store, batch)
        persistence.written(self.store)
        self.batches.checkpoint(batch, group)
        record = _encode(self._image(self.dedup.checkpoint(batch, group)))
        batch.put(key(group, RECORD, 0), record)
        return size + len(record)

    def snapshot(self) -> Iterable[bytes]:
        """The state as of `applied`: the record, then the blocks, read while they are sent."""
        record = _encode(self._image(self.dedup.image(), self.batches.image()))
        blocks = persistence.snapshot(self.store)

        def chunks() -> Iterable[bytes]:
            yield record
            yield from blocks

        return chunks()

    def restore(self, chunks: Sequence[bytes]) -> None:
        """Become the state of another replica; the next checkpoint removes what was ours."""
        record = decode_record(chunks[0])
        self.store.remember_trails(record.config.max_msgs_per_subject)
        persistence.restore(self.store, record.store, chunks[1:])
        files = self.store.segments.files
        self.dedup = DedupWindow.restore(record.dedup, files)
        self.batches = Batches.restore(record.batches, files)
        self._take_over(record)

    def digest(self) -> bytes:
        """Equal on replicas that applied the same entries, however their blocks are cut."""
        image = self._image(DedupImage(0, []))
        open_batches = [(b.id, b.touched_ns, b.members) for b in self.batches.image()]
        apart = (self.dedup.entries(), open_batches)
        content = (persistence.digest(self.store), _encode(image), _encode(apart))
        return sha256(b"".join(content)).digest()

    def _image(self, dedup: DedupImage, batches: Sequence[OpenBatch] = ()) -> StreamRecord:
        return StreamRecord(
            version=RECORD_VERSION,
            applied=self.applied,
            created_ns=self.created_ns,
            config=self.config,
            store=persistence.image(self.store),
            sessions=self.sessions.images(),
            dedup=dedup,
            last_msg_id=self.last_msg_id,
            consumers=[self.consumers[name].encode() for name in sorted(self.consumers)],
            schedules=self.schedules.image(self.store.has) if self.schedules else [],
            batches=list(batches),
            sources=self.sources,
            fast_batches=self.fast_batches.image(),
        )

    def _take_over(self, record: StreamRecord) -> None:
        self.config = record.config
        self.created_ns = record.created_ns
        self.applied = record.applied
        self.sessions = Sessions.of(record.sessions)
        self.last_msg_id = record.last_msg_id
        self.schedules = Schedules.of(record.schedules)
        self.sources = dict(record.sources)
        self.fast_batches = FastBatches.of(record.fast_batches)
        self._compile()
        self.consumers = {}
        for blob in record.consumers:
            assert self.maker is not None, "this stream was built without consumers"
            consumer = self.maker.decode(self, blob)
            self.consumers[consumer.name] = consumer
        self.consumers_changed()
