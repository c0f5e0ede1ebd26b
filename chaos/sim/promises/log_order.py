"""Promises about reads and expectations: the answers of all clients fit one order of all writes.

Owns: the rule. A stream is one object, its log; this check is for streams from which nothing is
removed, so that every write that ever happened is found in the log afterwards.
May not touch: running nodes.

Why it is a check for linearizability. The log orders all writes, and a payload names its write, so
every answer tells a range of positions `lo..hi` of the log between which it was true: a write at
7 is 7..7, a get that found revision 7 of a key whose next revision is 12 is 7..11, and a refused
expectation is a get of what the refusal names. A linearization must give every operation a
position in its range that does not fall along real time, and rises where the later one is a write.
Give each operation the largest `lo` of itself and of all that completed before it was invoked. No
smaller position is possible, and this one does not fall because that relation is transitive: so a
linearization exists if and only if no operation with `lo` above (for a write: at or above) `hi`
completed before one with `hi` was invoked. An operation without answer completes before nothing;
it may have happened or not. tests/chaos/sim/test_log_order.py compares this with a search."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chaos.sim.promises.broken import BrokenPromise
from chaos.sim.promises.journal import Operation, Result
from chaos.sim.promises.stored import StoredRow

END = 2**62  # after all writes


@dataclass(slots=True)
class TrueWithin:
    """The answer of the operation was true between these log positions, both included."""

    operation: Operation
    lo: int
    hi: int
    writes: bool = False


def check_log_order(stream: str, answers: Sequence[TrueWithin]) -> None:
    ended = sorted(
        (one for one in answers if one.operation.result is not Result.UNKNOWN),
        key=lambda one: one.operation.completed_ns,
    )
    newest: TrueWithin | None = None
    at = 0
    for one in sorted(answers, key=lambda one: one.operation.invoked_ns):
        while at < len(ended) and ended[at].operation.completed_ns <= one.operation.invoked_ns:
            if newest is None or ended[at].lo > newest.lo:
                newest = ended[at]
            at += 1
        if newest is not None and newest.lo > one.hi - one.writes:
            raise BrokenPromise(
                f"{stream}: {_told(one.operation)} was true up to position {one.hi} only, but "
                f"{_told(newest.operation)} had shown position {newest.lo} before"
            )


def _told(operation: Operation) -> str:
    begin, end = operation.invoked_ns / 1e9, operation.completed_ns / 1e9
    answer = {**operation.fields, **operation.answer}
    return f"{operation.client}'s {operation.kind} ({begin:.4f}-{end:.4f} s, {_short(answer)})"


def _short(answer: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {str(value)[:60]}" for name, value in answer.items())


class WrittenLog:
    """The log of a stream from which nothing was removed."""

    def __init__(self, stream: str, rows: Sequence[StoredRow]) -> None:
        self.stream = stream
        self.rows = {row.seq: row for row in rows}
        self.by_payload: dict[bytes, StoredRow] = {}
        self._by_subject: dict[bytes, list[int]] = {}
        if [row.seq for row in rows] != list(range(1, len(rows) + 1)):
            raise BrokenPromise(f"{stream}: sequences are missing although nothing was removed")
        for row in rows:
            if row.data in self.by_payload:
                at = (self.by_payload[row.data].seq, row.seq)
                raise BrokenPromise(f"{stream}: {row.data[:24]!r} is stored twice, at {at}")
            self.by_payload[row.data] = row
            self._by_subject.setdefault(row.subject, []).append(row.seq)

    def before(self, seq: int, subject: str) -> int:
        """The last sequence of a subject before `seq`; of all subjects if it is empty."""
        if not subject:
            return seq - 1
        known = self._by_subject.get(subject.encode(), [])
        place = bisect_right(known, seq - 1)
        return known[place - 1] if place else 0

    def _after(self, seq: int, subject: str) -> int:
        if not subject:
            return seq + 1 if seq < len(self.rows) else END
        known = self._by_subject.get(subject.encode(), [])
        place = bisect_right(known, seq)
        return known[place] if place < len(known) else END

    # -- answers --------------------------------------------------------------------------------

    def written(self, operation: Operation) -> TrueWithin | None:
        """A write. None: it is not in the log."""
        row = self.by_payload.get(operation.fields["payload"])
        if row is None:
            if operation.result is Result.OK:
                raise BrokenPromise(f"{self.stream}: {_told(operation)} is lost")
            return None
        if operation.result is Result.FAILED:
            raise BrokenPromise(f"{self.stream}: {_told(operation)} was refused, but is stored")
        if operation.result is Result.OK and operation.answer["seq"] != row.seq:
            raise BrokenPromise(f"{self.stream}: {_told(operation)} is stored as {row.seq}")
        return TrueWithin(operation, row.seq, row.seq, writes=True)

    def last_was(self, operation: Operation, subject: str, seq: int) -> TrueWithin:
        """The answer says that `seq` was the last sequence of a subject, or of all subjects if it
        is empty; 0: there was none."""
        row = self.rows.get(seq)
        if seq and (row is None or (subject and row.subject != subject.encode())):
            raise BrokenPromise(f"{self.stream}: {_told(operation)}, but this was never written")
        return TrueWithin(operation, seq, self._after(seq, subject) - 1)

    def existed(self, operation: Operation, seq: int, *, found: bool) -> TrueWithin:
        """The answer says that a message exists, or does not."""
        if found and seq not in self.rows:
            raise BrokenPromise(f"{self.stream}: {_told(operation)}, but this was never written")
        return TrueWithin(operation, seq if found else 0, END if found else seq - 1)

    def all_of(self, operation: Operation, parts: Iterable[TrueWithin]) -> TrueWithin:
        """The answer says that several facts were true at the same time."""
        both = list(parts)
        lo, hi = max(one.lo for one in both), min(one.hi for one in both)
        if lo > hi:
            raise BrokenPromise(
                f"{self.stream}: {_told(operation)} was never true as a whole: {lo} is there, "
                f"what came after {hi} is not"
            )
        return TrueWithin(operation, lo, hi)

    def check_content(self, operation: Operation, seq: int, payload: bytes) -> None:
        row = self.rows.get(seq)
        if row is None or row.data != payload:
            raise BrokenPromise(
                f"{self.stream}: {_told(operation)} has {payload[:24]!r} as {seq}, which was never "
                "written there"
            )
