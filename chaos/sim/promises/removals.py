"""Promises about purges and deletes: what they removed stays removed, and nothing else is.

Owns: the rules.
May not touch: running nodes; it reads what they stored after the faults are over.
An operation without answer may have happened, or not, or happen until the end."""

from __future__ import annotations

from collections.abc import Sequence

from chaos.sim.promises.broken import BrokenPromise
from chaos.sim.promises.journal import Journal, Operation, Result
from chaos.sim.promises.stored import StoredRow

PUBLISH, PURGE, DELETE = "publish to a managed stream", "purge", "delete"


def check_removals(stream: str, journal: Journal, rows: Sequence[StoredRow]) -> None:
    ours = [one for one in journal.operations if one.fields.get("stream") == stream]
    removals = [
        one for one in ours if one.kind in (PURGE, DELETE) and one.result is not Result.FAILED
    ]
    published = {one.fields["payload"]: one for one in ours if one.kind == PUBLISH}
    stored: dict[bytes, StoredRow] = {}
    for row in rows:
        if row.data in stored:
            raise BrokenPromise(f"{stream}: {row.data[:24]!r} is stored twice")
        if row.data not in published:
            raise BrokenPromise(f"{stream}: nobody published {row.data[:24]!r} at {row.seq}")
        stored[row.data] = row
    for one in published.values():
        if one.result is Result.OK:
            _check_publish(stream, one, stored.get(one.fields["payload"]), removals)
    _check_refused_deletes(stream, ours, removals)


def _check_publish(
    stream: str, one: Operation, row: StoredRow | None, removals: Sequence[Operation]
) -> None:
    seq = one.answer["seq"]
    told = f"{stream}: {one.fields['payload']!r}, acked as {seq} at {one.completed_ns / 1e9:.4f} s"
    if row is None:
        if not any(_may_remove(removal, one) for removal in removals):
            raise BrokenPromise(f"{told}, is lost although nothing removed it")
        return
    if row.seq != seq:
        raise BrokenPromise(f"{told}, is stored as {row.seq}")
    for removal in removals:
        if _must_remove(removal, one):
            body, at = removal.fields["body"], removal.completed_ns / 1e9
            raise BrokenPromise(f"{told}, is there although {removal.kind} {body} removed it {at}")


def _covers(removal: Operation, one: Operation) -> bool:
    body = removal.fields["body"]
    if removal.kind == DELETE:
        return bool(body["seq"] == one.answer["seq"])
    if body.get("filter", one.fields["subject"]) != one.fields["subject"]:
        return False
    return "seq" not in body or one.answer["seq"] < body["seq"]


def _may_remove(removal: Operation, one: Operation) -> bool:
    late = removal.result is Result.OK and removal.completed_ns < one.invoked_ns
    return not late and _covers(removal, one)


def _must_remove(removal: Operation, one: Operation) -> bool:
    if removal.result is not Result.OK or "keep" in removal.fields["body"]:
        return False
    return one.completed_ns <= removal.invoked_ns and _covers(removal, one)


def _check_refused_deletes(
    stream: str, ours: Sequence[Operation], removals: Sequence[Operation]
) -> None:
    """A delete of a message that nothing else removed is not answered with "not found"."""
    published = {
        one.answer["seq"]: one for one in ours if one.kind == PUBLISH and one.result is Result.OK
    }
    for refused in ours:
        if refused.kind != DELETE or refused.result is not Result.FAILED:
            continue
        one = published.get(refused.fields["body"]["seq"])
        if one is not None and not any(_may_remove(removal, one) for removal in removals):
            raise BrokenPromise(
                f"{stream}: delete of {one.answer['seq']} was refused at "
                f"{refused.completed_ns / 1e9:.4f} s ({refused.answer}), although the message was "
                "there"
            )
