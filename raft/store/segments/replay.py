"""Replay: rebuilds the log of one group from its records, or finds that some are missing.

Owns: the meaning of records, and every check that detects a loss.
May not touch: files.
Spec: docs/decisions/0019-a-log-of-our-own.md, "Recovery". Records are replayed in the order in
which they were first written (`origin`); a moved record counts as the original. An entry replaces
all entries from its index on."""

from __future__ import annotations

from typing import Final

from raft.core.membership import members_of
from raft.core.messages import EntryKind
from raft.store.group_log import GroupLog
from raft.store.records import DamagedLog, GroupRecord, read_group
from raft.store.segments.format import GROUP, REMOVED, LogRecord
from raft.store.segments.promises import KeptPromise
from raft.types import Index, Term

_LOST_END: Final = "the log has lost its end"


def replay(
    log: GroupLog, records: list[LogRecord], promise: KeptPromise | None
) -> GroupLog | DamagedLog | None:
    """Fill the empty `log`, and return it; None if the group was removed. The log of a damaged
    group is filled up to the first entry that is missing."""
    group = log.group
    ordered = sorted(records, key=lambda record: record.origin)
    last_origin = ordered[-1].origin if ordered else 0
    found: LogRecord | None = None
    removed_at = 0
    entries: dict[int, LogRecord] = {}
    last = last_term = 0
    for record in ordered:
        if record.kind >= GROUP:
            found = None if record.kind == REMOVED else record
            removed_at = record.origin if record.kind == REMOVED else removed_at
            if record.kind != GROUP:
                entries.clear()
            last, last_term = record.index, record.term
            continue
        for index in range(record.index, last + 1):
            entries.pop(index, None)
        entries[record.index] = record
        last, last_term = record.index, record.term
    if promise is not None and promise.position <= removed_at:
        promise = None  # that of the removed group: a power failure restored the old slot
    if found is None:
        if promise is not None and promise.position > last_origin:
            return DamagedLog(group, promise.last, _LOST_END)
        return DamagedLog(group, Index(0), "there is no group record") if entries else None
    try:
        known = read_group(group, found.data or b"")
    except DamagedLog as damage:
        return damage
    log.restore_record(known, position=found.position, origin=last_origin)
    problem = _fill(log, entries, last, last_term) or _forgets(known, promise, last_origin)
    return log if problem is None else DamagedLog(group, Index(log.last_index() + 1), problem)


def _forgets(record: GroupRecord, promise: KeptPromise | None, newest: int) -> str | None:
    """What was promised and is missing from the log. The promise may be older than the log, but
    never newer."""
    if promise is None:
        return None
    if promise.position > newest:
        return f"{_LOST_END}; index {promise.last} was promised"
    hard_state = record.hard_state
    if promise.term > hard_state.term:
        return f"term {promise.term} was promised, the log knows only {hard_state.term}"
    if promise.term == hard_state.term and promise.vote and not hard_state.vote:
        return f"the vote of term {promise.term} is missing"
    return None


def _fill(log: GroupLog, entries: dict[int, LogRecord], last: int, last_term: int) -> str | None:
    """Fill the log. Returns what is wrong, if anything."""
    snapshot = log.record.snapshot
    before: int = snapshot.term
    for index in range(snapshot.index + 1, last + 1):
        entry = entries.get(index)
        if entry is None:
            return f"missing, although the log goes on up to {last}"
        if entry.before != before:
            return f"it follows an entry of term {entry.before}, the one stored is of {before}"
        before = entry.term
        members = members_of(entry.data or b"") if entry.kind == EntryKind.CONFIG else None
        log.restore_entry(
            Index(index), Term(entry.term), members, position=entry.position, size=entry.size
        )
    if last > snapshot.index and last_term != before:
        return f"the last entry was of term {last_term}, the one stored is of {before}"
    if log.record.hard_state.commit > log.last_index():
        return f"missing, although the log is committed up to {log.record.hard_state.commit}"
    return None
