"""Writes messages to the end of a stream: each is checked, then stored.

Owns: the steps of storing a message (TTL, message id, schedule, rollup, limits, republish), the
duplicate window and the table of schedules.
May not touch: the checks themselves (checks.py, stream_limits.py), open batches, clocks.
Spec: NATS JetStream publish headers; NATS ADR-43 (per-message TTL), ADR-30 (subject transform)."""

from __future__ import annotations

from typing import Final, Protocol

from broker.jetstream.commands.publish_entry import Bounds
from broker.jetstream.config import Discard, StreamConfig
from broker.jetstream.config.transforms import mapping_of
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.incoming_message import TTL_HEADER, IncomingMessage, expires_at, parse_ttl
from broker.jetstream.publish.checks import above_account, refusal
from broker.jetstream.publish.counters import value_of
from broker.jetstream.publish.dedup_window import DedupWindow
from broker.jetstream.publish.republish import LeaderEffects, Republisher
from broker.jetstream.publish.sessions import Duplicate, Stored
from broker.jetstream.publish.stream_limits import enforce_limits, limit_refusal
from broker.jetstream.schedules.schedules import PURGE_SCHEDULE, Schedules
from broker.jetstream.times import NS_PER_S
from broker.store.block.codec import Block
from broker.store.messages import MessageStore
from broker.wire import headers as wire_headers

_ROLLUPS: Final = (b"sub", b"all")


class SubjectInterest(Protocol):
    """Which subjects a stream keeps: all of them, unless its retention is by interest."""

    def wants(self, subject: bytes, /) -> bool: ...

    @property
    def wants_all(self) -> bool: ...


class MessageWriter:
    """Every replica writes the same messages in the same order, so nothing here may depend on
    anything but the entry being applied and the state of the stream."""

    def __init__(
        self, config: StreamConfig, store: MessageStore, interest: SubjectInterest
    ) -> None:
        self.store = store
        self.interest = interest
        self.dedup = DedupWindow()
        self.schedules = Schedules()
        self.effects = LeaderEffects()
        self.configure(config)

    def configure(self, config: StreamConfig) -> None:
        self.config = config
        self.transform = mapping_of(config.subject_transform)
        self._republisher = Republisher.of(config)

    def publish(
        self, message: IncomingMessage, bounds: Bounds | None
    ) -> JetStreamError | Duplicate | Stored | None:
        """Check one message and store it. None: it took the next sequence."""
        config, store = self.config, self.store
        refused = refusal(config, store, self.dedup, message)
        if refused is not None:
            return refused
        if bounds is not None and store.bytes > bounds.server:
            return JetStreamError(ErrCode.INSUFFICIENT_RESOURCES)
        if self.interest.wants(message.subject):
            broken = above_account(store, message, bounds) or self._unfit(message)
            if broken is not None:
                return broken
        self.store_message(message)
        if config.allow_msg_counter:
            return Stored(store.last_seq, val=value_of(message.data))
        return None

    def _unfit(self, message: IncomingMessage) -> JetStreamError | None:
        named, config = message.named, self.config
        if TTL_HEADER in named and parse_ttl(named[TTL_HEADER]) is None:
            return JetStreamError(ErrCode.MESSAGE_TTL_INVALID)
        return limit_refusal(config, self.store, message) if config.discard is Discard.NEW else None

    # -- storing, without checks ------------------------------------------------------------------

    def store_message(self, message: IncomingMessage) -> None:
        """Give the message the next sequence. If no consumer wants its subject, an interest stream
        acks the sequence but does not store the message."""
        store, subject = self.store, message.subject
        if not self.interest.wants(subject):
            store.skip_to(store.last_seq + 2)
            self._remember_id(message)
            if message.named:
                self._roll_up(message, keep=0)
            return
        ttl = self._time_to_live(message) if TTL_HEADER in message.named else None
        republisher = self._republisher if self.effects.collecting else None
        before = store.last_of_subject(subject) if republisher is not None else 0
        seq = store.append(subject, message.headers, message.data, time_ns=message.time_ns)
        if ttl is not None:
            store.deadlines.set(seq, expires_at(message.time_ns, ttl))
        self._remember_id(message)
        if self.config.allow_msg_schedules:
            self.schedules.stored(message, seq, self.store.has)
        if message.named:
            self._roll_up(message, keep=1)
        enforce_limits(self.config, store, (subject,))
        if republisher is not None:
            self._republish(republisher, message, seq=seq, before=before)

    def store_block(self, block: Block, time_ns: int) -> int:
        """Store every row of a block in which no row needs a check. Returns the first sequence."""
        config, store = self.config, self.store
        republisher = self._republisher if self.effects.collecting else None
        last: dict[bytes, int] = {}
        if republisher is not None:
            last = {subject: store.last_of_subject(subject) for subject in block.subject_summary()}
        first = store.append_block(block, time_ns=time_ns)
        self.dedup.last_id = b""
        limited = config.max_msgs_per_subject > 0
        enforce_limits(config, store, block.subject_summary() if limited else ())
        if republisher is not None:
            for row in range(block.rows):
                subject, seq = block.subject(row), first + row
                message = IncomingMessage(subject, block.headers(row), block.data(row), time_ns)
                self._republish(republisher, message, seq=seq, before=last[subject])
                last[subject] = seq
        return first

    def store_sequenced(self, block: Block) -> int:
        """Store rows that carry their sequences and times (a mirror, a restore). Returns how many
        were new."""
        config, store = self.config, self.store
        known = store.last_seq
        stored = store.append_sequenced(block)
        if config.allow_msg_ttl:
            self._note_deadlines(block, above=known)
        if config.allow_msg_schedules:
            self.schedules.note_block(block, above=known)
        enforce_limits(config, store, block.subject_summary())
        return stored

    # -- the steps --------------------------------------------------------------------------------

    def _note_deadlines(self, block: Block, *, above: int) -> None:
        """Deadlines of the rows above a sequence. An invalid TTL counts as none."""
        if not block.headers_len or not block.any_nats_header():
            return
        for row in range(block.first_at_or_after(above + 1), block.rows):
            headers = block.headers(row)
            value = wire_headers.get(headers, TTL_HEADER) if TTL_HEADER in headers else None
            ttl = parse_ttl(value) if value is not None else None
            if ttl is not None:
                self.store.deadlines.set(block.seq(row), expires_at(block.time(row), ttl))

    def _time_to_live(self, message: IncomingMessage) -> int | None:
        """The TTL in seconds. With delete markers, no message may expire sooner than a marker."""
        ttl, config = parse_ttl(message.named[TTL_HEADER]), self.config
        shortest = config.subject_delete_marker_ttl // NS_PER_S
        if ttl is not None and 0 < ttl < shortest and config.max_msgs_per_subject != 1:
            ttl = shortest
            message.set_header(TTL_HEADER, b"%d" % ttl)
        return ttl

    def _roll_up(self, message: IncomingMessage, *, keep: int) -> None:
        config, named = self.config, message.named
        if not config.allow_rollup_hdrs or config.deny_purge:
            return
        rollup = named.get(b"Nats-Rollup", b"").lower()
        if rollup in _ROLLUPS:
            self.store.purge(None if rollup == b"all" else message.subject, keep=keep)
        scheduler = named.get(b"Nats-Scheduler")
        if scheduler and named.get(b"Nats-Schedule-Next") == PURGE_SCHEDULE:
            self.store.purge(scheduler)

    def _remember_id(self, message: IncomingMessage) -> None:
        self.dedup.last_id = msg_id = message.msg_id
        if msg_id and self.config.duplicate_window > 0:
            self.dedup.add(msg_id, seq=self.store.last_seq, time_ns=message.time_ns)

    def _republish(
        self, republisher: Republisher, message: IncomingMessage, *, seq: int, before: int
    ) -> None:
        republished = republisher.message(message, seq=seq, before=before)
        if republished is not None:
            self.effects.republished.append(republished)
