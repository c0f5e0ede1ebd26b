"""Schedules whose time has come: what the leader proposes, and what every replica then does.

Owns: the message a firing publishes.
May not touch: which schedules there are (schedules.py), clocks.
Spec: JetStream sheet 3.9, firing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.jetstream.commands.stream_commands import Fire, Firing
from broker.jetstream.publish.message import IncomingMessage
from broker.jetstream.publish.store_message import PURGE_SCHEDULE, store_message
from broker.jetstream.schedules import schedules
from broker.jetstream.schedules.schedules import Pending, schedule_of
from broker.jetstream.times import rfc3339
from broker.wire import headers as wire_headers

if TYPE_CHECKING:
    from broker.jetstream.stream.stream import Stream

FIRED_AT_ONCE_MAX: Final = 1000  # of one command; the others are due right after it
_NOT_PASSED_ON: Final = (
    b"Nats-Schedule",  # all of them, Nats-Scheduler too
    b"Nats-Expected-",
    b"Nats-Msg-Id:",
    b"Nats-TTL:",
    b"Nats-Rollup:",
)


def firings(stream: Stream, now_ns: int) -> Fire | None:
    """The command for the schedules that are due, on the leader."""
    due = stream.schedules.due(now_ns, limit=FIRED_AT_ONCE_MAX)
    made = [firing for pending in due if (firing := _firing(stream, pending, now_ns)) is not None]
    return Fire(now_ns, made) if made else None


def _firing(stream: Stream, pending: Pending, now_ns: int) -> Firing | None:
    found = stream.store.rows(pending.seq)
    if found is None:
        return None
    raw = found[0].headers(found[1])
    schedule = schedule_of(wire_headers.get(raw, schedules.PATTERN) or b"")
    if schedule is None:
        return None
    zone = (wire_headers.get(raw, schedules.TIME_ZONE) or b"").decode(errors="replace")
    following = 0
    if schedule.repeats:
        following = schedule.following(pending.due_ns, now_ns=now_ns, zone=zone)
    return Firing(pending.seq, pending.due_ns, following)


def fire(stream: Stream, command: Fire) -> int:
    """Publish what the schedules say. How many did; a repeated command fires nothing twice."""
    count = 0
    for firing in command.fired:
        found = stream.store.rows(firing.seq)
        if found is None or stream.config.sealed:
            continue
        pending = stream.schedules.get(found[0].subject(found[1]))
        if pending is None or pending.seq != firing.seq or firing.due_ns <= pending.fired_ns:
            continue
        message = _message(stream, pending.subject, firing, max(command.now_ns, stream.last_time))
        if message is None:
            continue
        stream.schedules.fired(pending, due_ns=firing.due_ns, next_ns=firing.next_ns)
        store_message(stream, message)
        count += 1
    return count


def _message(
    stream: Stream, subject: bytes, firing: Firing, time_ns: int
) -> IncomingMessage | None:
    """The schedule's own content, or that of the last message of its source."""
    found = stream.store.rows(firing.seq)
    if found is None:
        return None
    rows, i = found
    raw = rows.headers(i)
    said = {name: wire_headers.get(raw, name) or b"" for name in _SETTINGS}
    source = said[schedules.SOURCE]
    content = stream.store.rows(stream.store.last_of_subject(source)) if source else None
    if content is not None:
        rows, i = content
    following = rfc3339(firing.next_ns).encode() if firing.next_ns else PURGE_SCHEDULE
    lines = [(schedules.SCHEDULER, subject), (schedules.NEXT, following)]
    if said[schedules.TTL]:
        lines.append((b"Nats-TTL", said[schedules.TTL]))
    if said[schedules.ROLLUP]:
        lines.append((b"Nats-Rollup", said[schedules.ROLLUP]))
    passed_on = wire_headers.without(rows.headers(i), *_NOT_PASSED_ON)
    target = said[schedules.TARGET]
    if stream.transform is not None:
        target = stream.transform(target, seed=time_ns) or target
    return IncomingMessage.of(target, wire_headers.add(passed_on, lines), rows.data(i), time_ns)


_SETTINGS: Final = (schedules.TARGET, schedules.SOURCE, schedules.TTL, schedules.ROLLUP)
