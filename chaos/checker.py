"""The verdict: what was promised against what is stored.

Owns: the rules. Anomalies have names, so that a report says what went wrong.
May not touch: servers, files; it compares two lists.
Rules: an acked publish is stored at the sequence its ack named; none is stored twice; nothing is
stored that was not sent; an indefinite publish may be stored or not; sequences rise, also from
what was acked before another publish was sent to that one; every replica tells the same history.
A run in which nothing was acked has shown nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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


def check(history: History, stored: Mapping[str, Stored]) -> Verdict:
    """Judge a run. `stored` holds what each reading (by node) found, at least one."""
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
    _check_promises(history, first, found)
    _check_order(history, found)
    for name, reading in readings[1:]:
        if list(reading) != list(first):
            found.setdefault("replicas differ", []).append(f"{first_name} and {name}")
    return verdict


def _check_stored(history: History, stored: Stored, found: Anomalies) -> None:
    """What is there, by itself."""
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


def _check_promises(history: History, stored: Stored, found: Anomalies) -> None:
    """What is there against what was said about it."""
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
    """Who was acked before another was sent has the lower sequence."""
    done = sorted(history.acked(), key=lambda p: p.done_ns)
    highest = at = 0
    for publish in sorted(history.acked(), key=lambda p: p.sent_ns):
        while done[at].done_ns < publish.sent_ns:
            highest = max(highest, done[at].seq)
            at += 1
        if publish.seq <= highest:
            found.setdefault("sequence went back", []).append(f"{publish.ident}@{publish.seq}")
