"""Firing of schedules: the command the leader proposes, and its effect on every replica.

Owns: the message that a firing publishes.
May not touch: which schedules there are (schedules.py), how a message is stored, clocks.
Spec: NATS ADR-51 (message scheduler)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from broker.jetstream.commands.stream_commands import Fire, Firing
from broker.jetstream.incoming_message import IncomingMessage
from broker.jetstream.schedules import schedules as names
from broker.jetstream.schedules.schedules import (
    PURGE_SCHEDULE,
    PendingSchedule,
    Schedules,
    schedule_of,
)
from broker.jetstream.times import rfc3339
from broker.store.block.codec import Rows
from broker.subjects.mapping import Mapping
from broker.wire import headers as wire_headers

FIRED_AT_ONCE_MAX: Final = 1000  # the rest is proposed right after
FIRED_BY_COMMAND_MAX: Final = 100  # which is one step of every replica
_SETTINGS: Final = (names.TARGET, names.SOURCE, names.TTL, names.ROLLUP)
# Headers of the schedule (by prefix) that the published message does not get.
_NOT_COPIED: Final = (
    b"Nats-Schedule",  # also covers Nats-Scheduler
    b"Nats-Expected-",
    b"Nats-Msg-Id:",
    b"Nats-TTL:",
    b"Nats-Rollup:",
)


class MessageLookup(Protocol):
    """The part of a MessageStore that a firing reads."""

    @property
    def last_time(self) -> int: ...
    def rows(self, seq: int, /) -> tuple[Rows, int] | None: ...
    def last_row(self, subject: bytes, /) -> tuple[Rows, int] | None: ...


def due_firings(schedules: Schedules, store: MessageLookup, now_ns: int) -> list[Fire]:
    """On the leader: the commands for the schedules that are due."""
    due = schedules.due(now_ns, limit=FIRED_AT_ONCE_MAX)
    made = [firing for pending in due if (firing := _firing(store, pending, now_ns)) is not None]
    most = FIRED_BY_COMMAND_MAX
    return [Fire(now_ns, made[first : first + most]) for first in range(0, len(made), most)]


def _firing(store: MessageLookup, pending: PendingSchedule, now_ns: int) -> Firing | None:
    found = store.rows(pending.seq)
    if found is None:
        return None
    raw = found[0].headers(found[1])
    schedule = schedule_of(wire_headers.get(raw, names.PATTERN) or b"")
    if schedule is None:
        return None
    zone = (wire_headers.get(raw, names.TIME_ZONE) or b"").decode(errors="replace")
    following = 0
    if schedule.repeats:
        following = schedule.following(pending.due_ns, now_ns=now_ns, zone=zone)
    return Firing(pending.seq, pending.due_ns, following)


def apply_fire(
    command: Fire,
    schedules: Schedules,
    store: MessageLookup,
    *,
    transform: Mapping | None,
    publish: Callable[[IncomingMessage], None],
) -> int:
    """Publish the messages of the schedules that fire; returns how many did. Applied a second time
    the command has no effect."""
    count = 0
    for firing in command.fired:
        found = store.rows(firing.seq)
        if found is None:
            continue
        pending = schedules.get(found[0].subject(found[1]))
        if pending is None or pending.seq != firing.seq or firing.due_ns <= pending.fired_ns:
            continue
        time_ns = max(command.now_ns, store.last_time)
        message = _message(store, found, firing, time_ns=time_ns, transform=transform)
        schedules.fired(pending, due_ns=firing.due_ns, next_ns=firing.next_ns)
        publish(message)
        count += 1
    return count


def _message(
    store: MessageLookup,
    schedule: tuple[Rows, int],
    firing: Firing,
    *,
    time_ns: int,
    transform: Mapping | None,
) -> IncomingMessage:
    """The schedule's own content, or that of the last message on its source subject."""
    rows, row = schedule
    subject, raw = rows.subject(row), rows.headers(row)
    settings = {name: wire_headers.get(raw, name) or b"" for name in _SETTINGS}
    source = settings[names.SOURCE]
    content = store.last_row(source) if source else None
    if content is not None:
        rows, row = content
    following = rfc3339(firing.next_ns).encode() if firing.next_ns else PURGE_SCHEDULE
    lines = [(names.SCHEDULER, subject), (names.NEXT, following)]
    if settings[names.TTL]:
        lines.append((b"Nats-TTL", settings[names.TTL]))
    if settings[names.ROLLUP]:
        lines.append((b"Nats-Rollup", settings[names.ROLLUP]))
    copied = wire_headers.without(rows.headers(row), *_NOT_COPIED)
    target = settings[names.TARGET]
    if transform is not None:
        target = transform(target, seed=time_ns) or target
    return IncomingMessage.of(target, wire_headers.add(copied, lines), rows.data(row), time_ns)
