"""Promises about batches and message ids.

Owns: the rules.
May not touch: running nodes; it reads what they stored, of a stream from which nothing was
removed.
Spec: NATS ADR-50 (atomic and fast batches), Nats-Msg-Id."""

from __future__ import annotations

from collections.abc import Sequence

from chaos.sim.promises.broken import BrokenPromise
from chaos.sim.promises.journal import Journal, Operation, Result
from chaos.sim.promises.stored import StoredRow

ATOMIC, FAST, REPEATED = "atomic batch", "fast batch", "repeated message"

Places = list[tuple[int, int]]  # (place in the batch, sequence), in the order of the stream


def check_batches(stream: str, journal: Journal, rows: Sequence[StoredRow]) -> None:
    stored: dict[str, Places] = {}
    for row in rows:
        name, _, number = row.data.decode().partition("/")
        stored.setdefault(name, []).append((int(number), row.seq))
    for operation in journal.of_kind(ATOMIC):
        _check_atomic(stream, operation, stored.get(operation.fields["batch"], []))
    for operation in journal.of_kind(FAST):
        _check_fast(stream, operation, stored.get(operation.fields["batch"], []))


def _check_atomic(stream: str, operation: Operation, places: Places) -> None:
    members, name = operation.fields["members"], operation.fields["batch"]
    told = f"{stream}: atomic batch {name} of {members}"
    if not places:
        if operation.result is Result.OK:
            raise BrokenPromise(f"{told} was acked and is lost")
        return
    first = places[0][1]
    if places != [(number + 1, first + number) for number in range(members)]:
        raise BrokenPromise(f"{told} is not stored as a whole, in order, each once: {places}")
    if operation.result is Result.FAILED:
        raise BrokenPromise(f"{told} was refused, but is stored at {first}")
    if operation.result is Result.OK:
        answer = operation.answer
        if (answer["seq"], answer["count"]) != (places[-1][1], members):
            raise BrokenPromise(f"{told} is stored as {places}, but was acked as {answer}")


def _check_fast(stream: str, operation: Operation, places: Places) -> None:
    fields = operation.fields
    members, acked = fields["members"], fields["acked"]
    told = f"{stream}: fast batch {fields['batch']} of {members} ({fields['gap']})"
    numbers = [number for number, _ in places]
    if numbers != sorted(set(numbers)):
        raise BrokenPromise(f"{told} is not stored in order, each once: {places}")
    if fields["gap"] == "fail" and numbers != list(range(1, len(numbers) + 1)):
        raise BrokenPromise(f"{told} has a gap: {places}")
    if not fields.get("whole"):  # the client lost its connection and may have missed gap replies
        return
    lost = {number for first, after in fields["gaps"] for number in range(first, after)}
    missing = set(range(1, acked + 1)) - lost - set(numbers)
    if missing:
        raise BrokenPromise(f"{told} was acked up to {acked}, but is stored as {places}")
    if operation.result is not Result.OK:
        return
    answer = operation.answer
    if places and answer["seq"] != places[-1][1]:
        raise BrokenPromise(f"{told} is stored as {places}, but was acked as {answer}")
    unsaid = set(range(1, answer["count"] + 1)) - lost - set(numbers)
    if unsaid:
        raise BrokenPromise(f"{told} is stored as {places}, but was acked as {answer}")


def check_repeats(stream: str, journal: Journal, rows: Sequence[StoredRow]) -> None:
    """A message id is stored once and every ack names that message: the window is longer than a
    run."""
    stored: dict[str, list[int]] = {}
    for row in rows:
        stored.setdefault(row.data.decode().partition("/")[0], []).append(row.seq)
    for operation in journal.of_kind(REPEATED):
        told = f"{stream}: message id {operation.fields['id']}"
        places = stored.get(operation.fields["id"], [])
        if len(places) > 1:
            raise BrokenPromise(f"{told} is stored {len(places)} times: {places}")
        if operation.result is Result.OK and operation.answer["seq"] not in places:
            raise BrokenPromise(f"{told} was acked as {operation.answer}, stored as {places}")
