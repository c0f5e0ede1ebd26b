"""The verdict of a chaos run: compares what was promised with what is stored.

Owns: the rules. Every anomaly has a name, so that a report says what went wrong.
May not touch: servers, files; it compares lists.
Rules: an acked publish is stored at the sequence of its ack; none is stored twice; nothing is
stored that was not sent; an indefinite publish may be stored or not; sequences increase, and a
publish that was sent after the ack of another has the higher one; all replicas store the same.
If nothing is ever removed, no sequence may be missing. A consumer that reads during the run gets
every message, an ordered consumer exactly what is stored. A run without any ack proves nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from chaos.history import History, Outcome

Stored = Sequence[tuple[int, str]]  # sequence and id, in the order of reading
Anomalies = dict[str, list[str]]
EXAMPLES_MAX = 5


@dataclass(slots=True)
class Verdict:
    acked: int
    failed: int
    unknown: int
    stored: int
    longest_gap_s: float
    anomalies: Anomalies = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.anomalies

    def lines(self) -> list[str]:
        text = [
            f"publishes: {self.acked:,} acked, {self.failed:,} failed, "
            f"{self.unknown:,} unanswered; {self.stored:,} stored",
            f"longest time between two acks: {self.longest_gap_s:.3f} s",
        ]
        for name, cases in self.anomalies.items():
            shown = ", ".join(cases[:EXAMPLES_MAX])
            text.append(
                f"{name}: {len(cases):,} ({shown}{', ...' if len(cases) > EXAMPLES_MAX else ''})"
            )
        text.append("verdict: every promise kept" if self.ok else "verdict: PROMISES BROKEN")
        return text


class Work(Protocol):
    """What a durable consumer with confirmed acks recorded."""

    @property
    def received(self) -> Mapping[int, str]: ...  # by sequence
    @property
    def after_confirmation(self) -> Sequence[int]: ...
    @property
    def changed_ids(self) -> Sequence[int]: ...


def check(history: History, stored: Mapping[str, Stored], *, gapless: bool = False) -> Verdict:
    """Check a run. `stored` holds what each reading found, by its name; at least one.

    `gapless`: nothing was removed, so every sequence from 1 to the last must be stored."""
    readings = list(stored.items())
    first_name, first = readings[0]
    verdict = Verdict(
        acked=len(history.acked()),
        failed=sum(p.outcome is Outcome.FAILED for p in history.publishes),
        unknown=sum(p.outcome is Outcome.UNKNOWN for p in history.publishes),
        stored=len(first),
        longest_gap_s=history.longest_gap_ns() / 1e9,
    )
    found = verdict.anomalies
    if history.publishes and not verdict.acked:
        found["nothing acked"] = [f"{len(history.publishes):,} publishes"]
    _check_stored(history, first, found)
    if gapless:
        _check_gaps(first, found)
    _check_promises(history, first, found)
    _check_order(history, found)
    for name, reading in readings[1:]:
        if not _same(reading, first):
            found.setdefault("replicas differ", []).append(f"{first_name} and {name}")
    return verdict


def _check_stored(history: History, stored: Stored, found: Anomalies) -> None:
    """Check the stored messages by themselves."""
    by_ident: dict[str, int] = {}
    last = 0
    for seq, ident in stored:
        if ident in by_ident:
            found.setdefault("stored twice", []).append(f"{ident}@{by_ident[ident]},{seq}")
        if seq <= last:
            found.setdefault("stored out of order", []).append(f"{last},{seq}")
        by_ident[ident] = last = seq
    sent = {p.ident for p in history.publishes}
    for ident in by_ident:
        if ident not in sent:
            found.setdefault("never sent", []).append(ident)


def check_readers(verdict: Verdict, stored: Stored, *, ordered: Stored, worker: Work) -> None:
    """Compare what consumers received with what is stored; adds anomalies to the verdict."""
    found = verdict.anomalies
    if not _same(ordered, stored):
        found["ordered reader differs"] = [_first_difference(ordered, stored)]
    for seq, ident in stored:
        given = worker.received.get(seq)
        if given is None:
            found.setdefault("never delivered", []).append(str(seq))
        elif given != ident:
            found.setdefault("delivered another message", []).append(f"{seq}: {given}, {ident}")
    there = {seq for seq, _ in stored}
    for seq in worker.received:
        if seq not in there:
            found.setdefault("delivered but not stored", []).append(str(seq))
    for name, cases in (
        ("delivered after its ack was confirmed", worker.after_confirmation),
        ("delivered with two contents", worker.changed_ids),
    ):
        if cases:
            found[name] = [str(seq) for seq in cases]


def _same(one: Stored, other: Stored) -> bool:
    return list(one) == list(other)


def _first_difference(read: Stored, stored: Stored) -> str:
    for mine, theirs in zip(read, stored, strict=False):
        if mine != theirs:
            return f"read {mine[1]}@{mine[0]} where {theirs[1]}@{theirs[0]} is stored"
    return f"read {len(read):,} of {len(stored):,}"


def _check_gaps(stored: Stored, found: Anomalies) -> None:
    expected = 1
    for seq, _ in stored:
        if seq > expected:
            found.setdefault("sequences missing", []).append(f"{expected}..{seq - 1}")
        expected = seq + 1


def _check_promises(history: History, stored: Stored, found: Anomalies) -> None:
    """Compare the stored messages with the answers to the publishes."""
    by_seq = dict(stored)
    idents = {ident for _, ident in stored}
    for publish in history.publishes:
        if publish.outcome is Outcome.ACKED:
            if publish.ident not in idents:
                found.setdefault("acked but lost", []).append(publish.ident)
            elif by_seq.get(publish.seq) != publish.ident:
                found.setdefault("acked at another sequence", []).append(
                    f"{publish.ident}@{publish.seq}"
                )
        elif publish.outcome is Outcome.FAILED and publish.ident in idents:
            found.setdefault("told failed but stored", []).append(publish.ident)


def _check_order(history: History, found: Anomalies) -> None:
    """A publish that was acked before another was sent has the lower sequence."""
    done = sorted(history.acked(), key=lambda p: p.done_ns)
    highest = at = 0
    for publish in sorted(history.acked(), key=lambda p: p.sent_ns):
        while done[at].done_ns < publish.sent_ns:
            highest = max(highest, done[at].seq)
            at += 1
        if publish.seq <= highest:
            found.setdefault("sequence went back", []).append(f"{publish.ident}@{publish.seq}")
