"""Promises about message schedules: each due time has one firing, and not before it is due.

Owns: the rules.
May not touch: running nodes; it reads what they stored after the faults are over.
Spec: NATS ADR-51 (message scheduler). Missed repeats fire once."""

from __future__ import annotations

from collections.abc import Sequence

from broker.jetstream.times import parse_rfc3339
from broker.wire import headers as wire_headers
from chaos.sim.promises.broken import BrokenPromise
from chaos.sim.promises.journal import Operation, Result
from chaos.sim.promises.stored import StoredRow

NEXT, SCHEDULER = b"Nats-Schedule-Next", b"Nats-Scheduler"


def fired_by(rows: Sequence[StoredRow], subject: str) -> list[StoredRow]:
    """The messages that the schedule of a subject has published."""
    return [row for row in rows if wire_headers.get(row.headers, SCHEDULER) == subject.encode()]


def check_once(stream: str, schedule: Operation, rows: Sequence[StoredRow]) -> None:
    """A schedule with one due time (`due_ns`), which nothing replaced. `rows`: fired by it."""
    fields = schedule.fields
    told = f"{stream}: schedule {fields['payload']!r} for {fields['due_ns']}"
    if any(row.time_ns < fields["due_ns"] for row in rows):
        raise BrokenPromise(f"{told} fired at {rows[0].time_ns}, before it was due")
    if len(rows) > 1:
        raise BrokenPromise(f"{told} fired {len(rows)} times: {[row.seq for row in rows]}")
    if schedule.result is Result.OK and not rows:
        raise BrokenPromise(f"{told} was acked, but did not fire")
    if schedule.result is Result.FAILED and rows:
        raise BrokenPromise(f"{told} was refused, but fired as {rows[0].seq}")


def check_repeats(stream: str, subject: str, rows: Sequence[StoredRow], *, ended_seq: int) -> None:
    """A schedule that repeats until the message `ended_seq` replaces it. `rows`: fired by it."""
    before: StoredRow | None = None
    due_ns = 0
    for row in rows:
        if row.time_ns < due_ns:
            assert before is not None
            raise BrokenPromise(
                f"{stream}: {subject} fired twice for one time, as {before.seq} at "
                f"{before.time_ns} and as {row.seq} at {row.time_ns}; the next was due at {due_ns}"
            )
        due_ns = parse_rfc3339((wire_headers.get(row.headers, NEXT) or b"").decode())
        before = row
        if row.seq > ended_seq:
            raise BrokenPromise(f"{stream}: {subject} fired as {row.seq}, after {ended_seq}")
