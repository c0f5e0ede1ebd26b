"""One stream as every replica holds it: messages, consumers and sessions, changed by log entries.

Owns: the parts of a stream and their order; what a log entry, a checkpoint and a snapshot mean for
each of them. `apply` is the only way to change a stream, and two replicas that have applied the
same entries are equal, byte for byte.
May not touch: clocks, randomness, sockets, Raft, delivery.
Spec: docs/ARCHITECTURE.md, "Invariants".

Errors are results, not exceptions: a refused command is part of the replicated history too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Self

import msgspec

from broker.jetstream.api.info import DELETED_DETAILS_LIMIT, StreamState
from broker.jetstream.commands import stream_commands as commands
from broker.jetstream.commands.consumer_commands import Acks, DeliveryProgress
from broker.jetstream.commands.publish_entry import PUBLISH_PREFIX_SIZE
from broker.jetstream.commands.stream_commands import (
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
from broker.jetstream.consumer.stream_protocol import AckingConsumer
from broker.jetstream.errors import JetStreamError
from broker.jetstream.publish.apply_publish import PUBLISHING, PublishApplier
from broker.jetstream.publish.dedup_window import DedupImage, DedupWindow
from broker.jetstream.publish.fast_batch import FastBatches
from broker.jetstream.publish.message_writer import MessageWriter
from broker.jetstream.publish.open_batches import AtomicBatches, OpenBatch
from broker.jetstream.publish.republish import LeaderEffects
from broker.jetstream.publish.sessions import Sessions
from broker.jetstream.publish.stream_limits import enforce_all_limits, find_excess
from broker.jetstream.publish.writers import Writers
from broker.jetstream.schedules.fire import apply_fire, due_firings
from broker.jetstream.schedules.schedules import Schedules
from broker.jetstream.stream.consumer_set import ConsumerSet
from broker.jetstream.stream.expiry import expire_messages, next_message_expiry
from broker.jetstream.stream.purge import delete, purge, purge_removed
from broker.jetstream.stream.sourcing import SourceIntake
from broker.jetstream.stream.stream_record import RECORD_VERSION, StreamRecord, decode_record
from broker.store import persistence
from broker.store.block.codec import Block
from broker.store.block.columns import FILE_SIZING, MEMORY_SIZING
from broker.store.messages import MessageStore
from broker.store.oldest_rows import OldestRows
from broker.store.removal import PurgePart
from broker.store.segments import BlockCache
from broker.store.state_keys import RECORD, BlockFiles, StateBatch, key
from broker.subjects import Steps, finish

_encode = msgspec.msgpack.Encoder().encode


class Stream:
    """Composes the parts; each part knows only what it needs. Consumers see a stream as their
    HomeStream."""

    def __init__(self, config: StreamConfig, *, created_ns: int, store: MessageStore) -> None:
        self.config = config
        self.created_ns = created_ns
        self.store = store
        self.applied = 0
        self._consumers = ConsumerSet(self, store)
        self.consumers = self._consumers.by_name
        self.consumer_configs = self._consumers.configs
        self._writer = MessageWriter(config, store, self._consumers.interest)
        self._publishes = PublishApplier(self._writer)
        self._sources = SourceIntake(self._writer)
        self._compactions_due = 0
        self._excess: OldestRows | None = None  # prepared for the next entry
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
        cache: BlockCache | None = None,
    ) -> Self:
        """The stream as of its last checkpoint, or a new one. Raises BlockDamaged."""
        sizing = MEMORY_SIZING if config.storage is Storage.MEMORY else FILE_SIZING
        store = MessageStore(files, sizing=sizing, cache=cache)
        raw = files.get(RECORD, 0)
        if raw is None:
            return cls(config, created_ns=created_ns, store=store)
        record = decode_record(raw)
        stream = cls(record.config, created_ns=created_ns, store=store)
        persistence.load(store, record.store)
        dedup = DedupWindow.load(record.dedup, files, last_id=record.last_msg_id)
        stream._take_over(record, dedup, AtomicBatches.load(files))
        return stream

    # -- reading ----------------------------------------------------------------------------------

    @property
    def dedup(self) -> DedupWindow:
        return self._writer.dedup

    @property
    def source_positions(self) -> Mapping[str, int]:
        """The last origin sequence taken, by source name, also of former sources."""
        return self._sources.positions

    @property
    def leader_effects(self) -> LeaderEffects:
        """What the leader has to send after entries were applied."""
        return self._writer.effects

    @property
    def last_time(self) -> int:
        """Time of the newest message ever stored: no later message gets an earlier time."""
        return self.store.last_time

    def state(self, *, subjects_filter: bytes = b"", deleted_details: bool = False) -> StreamState:
        store = self.store
        subjects: dict[str, int] = {}
        if subjects_filter:
            for subject in store.subjects_matching(subjects_filter):
                entry = store.index.get(subject)
                if entry is not None:
                    subjects[subject.decode(errors="replace")] = entry.count
        deleted = finish(store.deleted_sequences(DELETED_DETAILS_LIMIT)) if deleted_details else ()
        return StreamState(
            messages=store.messages,
            bytes=store.bytes,
            first_seq=store.first_seq if store.last_seq or self.config.first_seq == 1 else 0,
            first_ts=store.first_time,
            last_seq=store.last_seq,
            last_ts=store.last_time,
            num_subjects=store.num_subjects,
            subjects=subjects,
            num_deleted=store.num_deleted,
            deleted=deleted,
            consumer_count=sum(not is_internal(c.config) for c in self.consumers.values()),
        )

    @property
    def staged_bytes(self) -> int:
        """Of members of open atomic batches."""
        return self._publishes.atomic_batches.nbytes

    @property
    def may_expire(self) -> bool:
        """False only if there is certainly no next expiry. A fast check."""
        return bool(
            self.config.max_age > 0
            or self.store.deadlines
            or self._writer.schedules
            or self._publishes.atomic_batches
            or self._publishes.fast_batches
        )

    def next_expiry(self, now: int) -> int | None:
        """When the leader should propose the `due_commands`; not before `now`."""
        times = (self._publishes.next_expiry(), next_message_expiry(self._writer))
        due = min((at for at in times if at is not None), default=None)
        return None if due is None else max(due, now)

    def due_commands(self, now: int) -> list[commands.AnyCommand]:
        """What the leader proposes at `next_expiry`."""
        schedules = self._writer.schedules
        fired = due_firings(schedules, self.store, now) if schedules else []
        return [Expire(now), *fired]

    # -- applying ---------------------------------------------------------------------------------

    def is_long(self, data: bytes) -> bool:
        """Whether the entry may need a search of the whole stream."""
        kind = data[0]
        if kind in PUBLISHING:
            return self._publishes.is_long(data)
        if kind == CommandKind.DELETE_CONSUMER:
            return self.config.retention is Retention.INTEREST
        if kind == CommandKind.UPDATE_CONFIG:
            return self.store.messages > 0
        return kind == CommandKind.CREATE_CONSUMER

    def prepare(self, data: bytes) -> Steps[None]:
        """Search in steps for what `apply` needs for this entry, which must be the next one."""
        if data[0] in PUBLISHING:
            yield from self._publishes.prepare(data)
            return
        command = commands.decode(data)
        if isinstance(command, CreateConsumer):
            yield from self._consumers.prepare(command)
        elif isinstance(command, DeleteConsumer):
            yield from self._consumers.prepare_delete(command)
        elif isinstance(command, UpdateConfig):
            self._excess = yield from find_excess(command.config, self.store)

    def apply(self, index: int, data: bytes) -> object:
        """Apply the log entry at `index`. The result is for the proposer."""
        self.applied = index
        kind = data[0]
        if kind in (CommandKind.PUBLISH, CommandKind.NOTED_PUBLISH):
            result: object = self._publishes.apply(data)
        elif kind == CommandKind.MIRROR_BATCH:
            block = Block(memoryview(data)[PUBLISH_PREFIX_SIZE:], verify=False)
            result = self._writer.store_sequenced(block)
        elif kind == CommandKind.SOURCE_BATCH:
            result = self._sources.apply(data)
        elif kind == CommandKind.WRITER_BATCH:
            result = self._publishes.apply_writer(data)
        else:
            result = self._command(index, commands.decode(data))
        if self.consumers:
            self._consumers.report_removals()
            if kind == CommandKind.PURGE and purge_removed(result):
                self._consumers.report_purge()
        return result

    def advanced(self, index: int) -> None:
        """An entry that is not for the stream (such as a new leader's first one) was applied."""
        self.applied = index

    def _command(self, index: int, command: commands.AnyCommand) -> object:
        match command:
            case DeliveryProgress():
                self._consumers.progress(command)
                return None
            case Acks():
                self._consumers.acks(command)
                return None
            case CreateConsumer():
                return self._consumers.create(command, index=index)
            case DeleteConsumer():
                return self._consumers.delete(command)
            case UpdateConsumer() | PauseConsumer() | ResetConsumer():
                return self._consumers.change(command, index=index)
            case _:
                return self._message_command(index, command)

    def _message_command(
        self, index: int, command: Expire | Fire | LoadState | Purge | DeleteMessage | UpdateConfig
    ) -> int | PurgePart | JetStreamError | None:
        match command:
            case Expire():
                self._publishes.expire(command.now_ns)
                return expire_messages(self._writer, command.now_ns)
            case Fire():
                return self._fire(command)
            case LoadState():
                self._load_state(command, index=index)
                return None
            case Purge():
                return purge(self.config, self.store, command)
            case DeleteMessage():
                return delete(self.config, self.store, command)
            case UpdateConfig():
                self._update_config(command.config)
                return None

    def _fire(self, command: Fire) -> int:
        if self.config.sealed:
            return 0
        writer = self._writer
        return apply_fire(
            command,
            writer.schedules,
            self.store,
            transform=writer.transform,
            publish=writer.store_message,
        )

    def _load_state(self, command: LoadState, *, index: int) -> None:
        """Set the state of a restored stream besides its messages, which came before, with their
        own sequences. Applied again it changes nothing."""
        store, dedup = self.store, self._writer.dedup
        store.skip_to(command.last_seq + 1)
        store.advance_time(command.last_time)
        dedup.last_id = command.last_msg_id or dedup.last_id
        self._sources.positions.update(command.sources)
        for message_id, seq, time_ns in command.message_ids:
            if not dedup.find(message_id):
                dedup.add(message_id, seq=seq, time_ns=time_ns)
        self._consumers.restore(command.consumers, index=index)

    def _update_config(self, config: StreamConfig) -> None:
        before = self.config
        excess, self._excess = self._excess, None
        self._set_config(config)
        if not config.allow_batched:
            self._publishes.fast_batches.clear()
        self.store.remember_trails(config.max_msgs_per_subject)
        enforce_all_limits(config, self.store, excess)
        if before.retention is not config.retention:
            self._consumers.interest.drop_unneeded()

    def _set_config(self, config: StreamConfig) -> None:
        self.config = config
        self._writer.configure(config)
        self._consumers.interest.configure(config)

    def consumer_acked(self, consumer: AckingConsumer, seqs: Sequence[int]) -> None:
        """Called by a consumer while it applies a command: it no longer needs these messages."""
        self._consumers.interest.acked(consumer, seqs)
        self.store.take_removals()  # no consumer needs these messages, so none is notified

    # -- persistence ------------------------------------------------------------------------------

    def needs_checkpoint(self) -> bool:
        return persistence.needs_checkpoint(self.store)

    def overdue(self) -> bool:
        return persistence.overdue(self.store)

    def growing_bytes(self) -> int:
        return persistence.growing_bytes(self.store)

    def seal(self) -> None:
        """End the growing block: after the next checkpoint it is in memory only while it is read.
        Where blocks begin and end does not matter to other replicas."""
        self.store.segments.seal()

    def crowded(self) -> bool:
        return persistence.crowded(self.store)

    def overdue_by_far(self) -> bool:
        return persistence.overdue_by_far(self.store)

    def work_ahead(self) -> bool:
        """Do a part of the work of the next checkpoint; False if nothing is left to do."""
        if not persistence.work_ahead(self.store):
            due = self._compactions_due > 0 and persistence.compact(self.store)
            self._compactions_due = self._compactions_due - 1 if due else 0
            return due
        return True

    def checkpoint(self, batch: StateBatch) -> int:
        """Queue everything that changed, with the record for `applied`; returns its size.

        The caller must write the batch before anything is read or applied. If that fails, the
        replica must stop."""
        size = self.take_checkpoint(batch)
        self.checkpoint_written()
        return size

    def take_checkpoint(self, batch: StateBatch) -> int:
        """The same, for a batch that is written later, before the next checkpoint. Until
        `checkpoint_written`, its blocks are read from memory."""
        group = self.store.segments.files.group
        self._compactions_due = persistence.COMPACTIONS_PER_CHECKPOINT
        size = persistence.checkpoint(self.store, batch)
        self._publishes.atomic_batches.checkpoint(batch, group)
        record = _encode(self._record(self.dedup.checkpoint(batch, group)))
        batch.put(key(group, RECORD, 0), record)
        return size + len(record)

    def checkpoint_written(self) -> None:
        persistence.written(self.store)

    def snapshot(self) -> Iterable[bytes]:
        """The state as of `applied`: first the record, then the blocks, which are read from disk
        one by one while the snapshot is sent."""
        batches = self._publishes.atomic_batches.image()
        record = _encode(self._record(self.dedup.image(), batches))
        blocks = persistence.snapshot(self.store)

        def chunks() -> Iterable[bytes]:
            yield record
            yield from blocks

        return chunks()

    def restore(self, chunks: Sequence[bytes]) -> None:
        """Replace the state by the snapshot of another replica. What was on disk before has been
        wiped."""
        record = decode_record(chunks[0])
        self.store.remember_trails(record.config.max_msgs_per_subject)
        persistence.restore(self.store, record.store, chunks[1:])
        dedup = DedupWindow.restore(record.dedup, last_id=record.last_msg_id)
        self._take_over(record, dedup, AtomicBatches.restore(record.batches))

    def digest(self) -> bytes:
        """Equal on replicas that applied the same entries, however their blocks are cut."""
        record = self._record(DedupImage(0, []))
        batches = self._publishes.atomic_batches.image()
        open_batches = [(b.id, b.touched_ns, b.members) for b in batches]
        rest = (self.dedup.entries(), open_batches)
        content = (persistence.digest(self.store), _encode(record), _encode(rest))
        return sha256(b"".join(content)).digest()

    def _record(self, dedup: DedupImage, batches: Sequence[OpenBatch] = ()) -> StreamRecord:
        schedules = self._writer.schedules
        return StreamRecord(
            version=RECORD_VERSION,
            applied=self.applied,
            created_ns=self.created_ns,
            config=self.config,
            store=persistence.image(self.store),
            sessions=self._publishes.sessions.images(),
            dedup=dedup,
            last_msg_id=self.dedup.last_id,
            consumers=self._consumers.images(),
            schedules=schedules.image(self.store.has) if schedules else [],
            batches=list(batches),
            sources=self._sources.positions,
            fast_batches=self._publishes.fast_batches.image(),
            writers=self._publishes.writers.image(),
        )

    def _take_over(self, record: StreamRecord, dedup: DedupWindow, batches: AtomicBatches) -> None:
        self.created_ns = record.created_ns
        self.applied = record.applied
        self._set_config(record.config)
        self._writer.dedup = dedup
        self._writer.schedules = Schedules.of(record.schedules)
        self._publishes.sessions = Sessions.of(record.sessions)
        self._publishes.atomic_batches = batches
        self._publishes.fast_batches = FastBatches.of(record.fast_batches)
        self._publishes.writers = Writers(record.writers)
        self._sources.positions = dict(record.sources)
        self._consumers.replace(record.consumers)
