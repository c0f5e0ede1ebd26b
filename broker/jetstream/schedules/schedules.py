"""Message schedules: stored messages that publish another message at a later time.

Owns: which subjects hold a schedule and when each is next due; the checks of schedule headers.
May not touch: the firing (fire.py), clocks.
Spec: NATS ADR-51 (message scheduler); docs/decisions/0004-time-and-batches-are-replicated.md.

A subject has at most one schedule: a newer message on the subject replaces it. The due times are
hints that tell the leader when to propose a Fire command. That command carries its own times,
because time zone rules are not replicated state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final

import msgspec

from broker.jetstream.config import StreamConfig
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.incoming_message import IncomingMessage, parse_ttl
from broker.jetstream.schedules.pattern import BadPattern, Schedule, parse_schedule
from broker.jetstream.schedules.time_zones import TIME_ZONES
from broker.store.block.codec import Block, Rows
from broker.subjects import collides, valid_subject
from broker.wire import headers as wire_headers

PATTERN: Final = b"Nats-Schedule"
TIME_ZONE: Final = b"Nats-Schedule-Time-Zone"
TARGET: Final = b"Nats-Schedule-Target"
SOURCE: Final = b"Nats-Schedule-Source"
TTL: Final = b"Nats-Schedule-TTL"
ROLLUP: Final = b"Nats-Schedule-Rollup"
NEXT: Final = b"Nats-Schedule-Next"
SCHEDULER: Final = b"Nats-Scheduler"
PURGE_SCHEDULE: Final = b"purge"  # value of Nats-Schedule-Next that removes the schedule
_HEAP_SLACK: Final = 1024  # the heap is rebuilt above twice the number of schedules plus this
LOOKED_AT: Final = 512  # entries of removed messages that are dropped at a time
_LOOKED_AT_EACH: Final = 4  # entries checked for each new schedule, during a lap

LastRow = Callable[[bytes], tuple[Rows, int] | None]  # MessageStore.last_row


class PendingSchedule(msgspec.Struct, array_like=True, frozen=True):
    """One schedule. `fired_ns` is the due time it fired for last, 0 for none."""

    subject: bytes
    seq: int
    due_ns: int
    fired_ns: int = 0


@dataclass(slots=True)
class Schedules:
    """The schedules of one stream. Entries whose message was removed are dropped lazily, some at a
    time: `is_stored` arguments return whether a sequence is still stored. When there are twice as
    many entries as after the last lap, a new lap checks all of them, some for each new schedule:
    otherwise a stream that removes schedules as fast as they come would collect entries that are
    due years from now."""

    _by_subject: dict[bytes, PendingSchedule] = field(default_factory=dict)
    _heap: list[tuple[int, int, bytes]] = field(default_factory=list)
    _lap: int = 0  # entries of the heap that are still to be checked
    _kept: int = 0  # entries after the last lap

    def __len__(self) -> int:
        return len(self._by_subject)

    def get(self, subject: bytes) -> PendingSchedule | None:
        return self._by_subject.get(subject)

    def any_of(self, block: Block) -> bool:
        """True if a row of the block is on a subject that holds a schedule."""
        return any(subject in self._by_subject for subject in block.subject_summary())

    def stored(
        self, message: IncomingMessage, seq: int, is_stored: Callable[[int], bool] | None = None
    ) -> None:
        """A message was stored as `seq`: it replaces the schedule of its subject, if any, and may
        be a schedule itself."""
        self._by_subject.pop(message.subject, None)
        if message.named.get(PATTERN):
            schedule = schedule_of(message.named[PATTERN])
            if schedule is not None:
                zone = message.named.get(TIME_ZONE, b"").decode(errors="replace")
                due = schedule.following(message.time_ns, now_ns=message.time_ns, zone=zone)
                self._put(PendingSchedule(message.subject, seq, due))
                if is_stored is not None:
                    self._look(is_stored)

    def _look(self, is_stored: Callable[[int], bool]) -> None:
        """Continue the lap, or begin one."""
        if not self._lap:
            if len(self._by_subject) <= 2 * self._kept + _HEAP_SLACK:
                return
            self._lap = len(self._heap)
        for _ in range(_LOOKED_AT_EACH):
            self._lap = min(self._lap, len(self._heap)) - 1
            if self._lap < 0:
                break
            _, seq, subject = self._heap[self._lap]
            pending = self._by_subject.get(subject)
            if pending is not None and pending.seq == seq and not is_stored(seq):
                del self._by_subject[subject]
        if self._lap <= 0:
            self._lap, self._kept = 0, len(self._by_subject)

    def note_block(self, block: Block, *, above: int) -> None:
        """Like `stored`, for the rows above a sequence; they carry their sequences and times."""
        if not self._by_subject and not (block.headers_len and block.any_nats_header()):
            return
        for row in range(block.first_at_or_after(above + 1), block.rows):
            message = IncomingMessage.of(
                block.subject(row), block.headers(row), b"", block.time(row)
            )
            self.stored(message, block.seq(row))

    def fired(self, pending: PendingSchedule, *, due_ns: int, next_ns: int) -> None:
        self._put(PendingSchedule(pending.subject, pending.seq, next_ns, due_ns))

    def _put(self, pending: PendingSchedule) -> None:
        self._by_subject[pending.subject] = pending
        heappush(self._heap, (pending.due_ns, pending.seq, pending.subject))
        if len(self._heap) > 2 * len(self._by_subject) + _HEAP_SLACK:
            self._rebuild()

    def _rebuild(self) -> None:
        self._heap = [(p.due_ns, p.seq, p.subject) for p in self._by_subject.values()]
        heapify(self._heap)

    def next_due(self, is_stored: Callable[[int], bool]) -> int | None:
        """When the next schedule is due, None if there is none. If many messages were removed, it
        may be the time of a removed one, which is then dropped when that time comes."""
        for _ in range(LOOKED_AT):
            if not self._heap:
                return None
            due_ns, seq, subject = self._heap[0]
            pending = self._by_subject.get(subject)
            if pending is not None and (pending.seq, pending.due_ns) == (seq, due_ns):
                if is_stored(seq):
                    return due_ns
                del self._by_subject[subject]  # its message was removed
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now_ns: int, *, limit: int) -> list[PendingSchedule]:
        """Schedules that are due, by sequence; the messages of some may be removed already."""
        ready: list[PendingSchedule] = []
        seen: list[tuple[int, int, bytes]] = []
        while self._heap and self._heap[0][0] <= now_ns and len(ready) < limit:
            entry = heappop(self._heap)
            pending = self._by_subject.get(entry[2])
            if pending is not None and (pending.due_ns, pending.seq) == entry[:2]:
                ready.append(pending)
                seen.append(entry)
        for entry in seen:  # they stay due until the Fire command is applied
            heappush(self._heap, entry)
        return sorted(ready, key=lambda pending: pending.seq)

    def image(self, is_stored: Callable[[int], bool]) -> list[PendingSchedule]:
        """For the stream's record. Only schedules whose message is stored: which stale entries a
        replica still holds may differ between replicas."""
        present = (pending for pending in self._by_subject.values() if is_stored(pending.seq))
        return sorted(present, key=lambda pending: pending.seq)

    @classmethod
    def of(cls, images: Iterable[PendingSchedule]) -> Schedules:
        schedules = cls({pending.subject: pending for pending in images})
        schedules._rebuild()
        return schedules


def schedule_of(pattern: bytes) -> Schedule | None:
    """None if the pattern is invalid."""
    try:
        return parse_schedule(pattern.decode())
    except (BadPattern, UnicodeDecodeError):
        return None


# -- checks ----------------------------------------------------------------------------------------


def wrong_schedule(
    config: StreamConfig,
    message: IncomingMessage,
    staged: Mapping[bytes, bool],
    last_row: LastRow,
) -> JetStreamError | None:
    """Why the schedule headers of a message are refused, None if they are not. A schedule without
    a Nats-Rollup header gets one (`sub`): it replaces the earlier schedule of its subject.

    `staged`: the subjects of earlier members of the same batch, and whether each is a schedule."""
    named = message.named
    if TIME_ZONE in named or named.get(PATTERN):
        refused = _wrong_pattern(config, message) or _wrong_details(config, message)
        if refused is not None:
            return refused
    return _wrong_scheduler(config, message, staged, last_row)


def _wrong_pattern(config: StreamConfig, message: IncomingMessage) -> JetStreamError | None:
    allowed, zone = config.allow_msg_schedules, message.named.get(TIME_ZONE)
    pattern = message.named.get(PATTERN)
    if not allowed and (pattern or zone is not None):
        return JetStreamError(ErrCode.MESSAGE_SCHEDULES_DISABLED)
    if zone is not None and zone.decode(errors="replace") not in TIME_ZONES:
        return JetStreamError(ErrCode.MESSAGE_SCHEDULES_TIME_ZONE_INVALID)
    if not pattern:
        return None
    schedule = schedule_of(pattern)
    if schedule is None or (zone is not None and schedule.cron is None):
        return JetStreamError(ErrCode.MESSAGE_SCHEDULES_PATTERN_INVALID)
    return None


def _wrong_details(config: StreamConfig, message: IncomingMessage) -> JetStreamError | None:
    named, stream_subjects = message.named, config.subject_patterns
    if not named.get(PATTERN):
        return None
    ttl = named.get(TTL, b"")
    if ttl and parse_ttl(ttl) is None:
        return JetStreamError(ErrCode.MESSAGE_SCHEDULES_TTL_INVALID)
    if named.get(ROLLUP, b"") not in (b"", b"sub"):
        return JetStreamError(ErrCode.MESSAGE_SCHEDULES_ROLLUP_INVALID)
    if ttl and not config.allow_msg_ttl:
        return JetStreamError(ErrCode.MESSAGE_TTL_DISABLED)
    target, source = named.get(TARGET, b""), named.get(SOURCE, b"")
    named_subjects = [(target, {message.subject}, ErrCode.MESSAGE_SCHEDULES_TARGET_INVALID)]
    if source:
        taken = {message.subject, target}
        named_subjects.append((source, taken, ErrCode.MESSAGE_SCHEDULES_SOURCE_INVALID))
    for subject, others, err_code in named_subjects:
        covered = any(collides(stream_subject, subject) for stream_subject in stream_subjects)
        if subject in others or not covered or not valid_subject(subject, wildcards=False):
            return JetStreamError(err_code)
    rollup = named.get(b"Nats-Rollup", b"").lower()
    if not rollup:
        message.set_header(b"Nats-Rollup", b"sub")
    elif rollup != b"sub":
        return JetStreamError(ErrCode.MESSAGE_SCHEDULES_ROLLUP_INVALID)
    return None


def _wrong_scheduler(
    config: StreamConfig,
    message: IncomingMessage,
    staged: Mapping[bytes, bool],
    last_row: LastRow,
) -> JetStreamError | None:
    """A client may set Nats-Scheduler only to remove a schedule on another subject."""
    following, scheduler = message.named.get(NEXT), message.named.get(SCHEDULER, b"")
    if not following:
        invalid = bool(scheduler)
        return JetStreamError(ErrCode.MESSAGE_SCHEDULES_SCHEDULER_INVALID) if invalid else None
    if (
        following != PURGE_SCHEDULE
        or scheduler == message.subject
        or not valid_subject(scheduler, wildcards=False)
    ):
        return JetStreamError(ErrCode.MESSAGE_SCHEDULES_SCHEDULER_INVALID)
    if not config.allow_msg_schedules:
        return JetStreamError(ErrCode.MESSAGE_SCHEDULES_DISABLED)
    if scheduler in staged:
        is_schedule = staged[scheduler]
    else:
        found = last_row(scheduler)
        is_schedule = found is None or bool(wire_headers.get(found[0].headers(found[1]), PATTERN))
    return None if is_schedule else JetStreamError(ErrCode.MESSAGE_SCHEDULES_SCHEDULER_INVALID)
