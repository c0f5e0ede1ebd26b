"""The verdict: what was promised against what is stored.

Owns: the rules. Anomalies have names, so that a report says what went wrong.
May not touch: servers, files; it compares two lists.
Rules: an acked publish is stored at the sequence its ack named; none is stored twice; nothing is
stored that was not sent; an indefinite publish may be stored or not; every replica tells the
same history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from chaos.history import History, Outcome

Stored = Sequence[tuple[int, str]]
EXAMPLES_MAX = 5


@dataclass(slots=True)
class Verdict:
    acked: int
    failed: int
    unknown: int
    stored: int
    longest_gap_s: float
    anomalies: dict[str, list[str]] = field(default_factory=dict)

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
    """Judge a run. `stored` holds what each reading (by node) found."""
    readings = list(stored.items())
    first_name, first = readings[0]
    verdict = Verdict(
        acked=len(history.acked()),
        failed=sum(p.outcome is Outcome.FAILED for p in history.publishes),
        unknown=sum(p.outcome is Outcome.UNKNOWN for p in history.publishes),
        stored=len(first),
        longest_gap_s=history.longest_gap_ns() / 1e9,
    )
    anomalies = verdict.anomalies
    _check_promises(history, first, anomalies)
    for name, reading in readings[1:]:
        if list(reading) != list(first):
            anomalies.setdefault("replicas differ", []).append(f"{first_name} and {name}")
    return verdict


def _check_promises(history: History, first: Stored, anomalies: dict[str, list[str]]) -> None:
    by_seq = dict(first)
    by_ident: dict[str, int] = {}
    for seq, ident in first:
        if ident in by_ident:
            anomalies.setdefault("stored twice", []).append(f"{ident}@{by_ident[ident]},{seq}")
        by_ident[ident] = seq
    sent = {p.ident for p in history.publishes}
    for ident in by_ident.keys() - sent:
        anomalies.setdefault("never sent", []).append(ident)
    for publish in history.publishes:
        if publish.outcome is Outcome.ACKED:
            if publish.ident not in by_ident:
                anomalies.setdefault("acked but lost", []).append(publish.ident)
            elif by_seq.get(publish.seq) != publish.ident:
                anomalies.setdefault("acked at another sequence", []).append(
                    f"{publish.ident}@{publish.seq}"
                )
        elif publish.outcome is Outcome.FAILED and publish.ident in by_ident:
            anomalies.setdefault("told failed but stored", []).append(publish.ident)
