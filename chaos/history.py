"""The journal of a chaos run: what was promised, and when.

Owns: one record per publish (when it was sent and answered, and how) and the times of the faults.
May not touch: the servers. A publish without an answer is indefinite: it may be stored or not.
Times are monotonic nanoseconds of the process that drives the run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import Enum
from itertools import pairwise
from pathlib import Path


class Outcome(Enum):
    ACKED = "acked"
    FAILED = "failed"  # the server answered that it was not stored
    UNKNOWN = "unknown"  # no answer in time: it may be stored or not


@dataclass(slots=True)
class Publish:
    ident: str
    sent_ns: int
    done_ns: int = 0
    outcome: Outcome = Outcome.UNKNOWN
    seq: int = 0
    duplicate: bool = False
    attempts: int = 1
    error: str = ""


@dataclass(slots=True)
class Mark:
    at_ns: int
    text: str


@dataclass(slots=True)
class History:
    publishes: list[Publish] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    # Running totals: computing them during a run would walk over an hour of publishes each time.
    acks: int = 0
    highest_acked: int = 0  # sequence

    def ack(self, publish: Publish, *, seq: int, duplicate: bool) -> None:
        publish.outcome, publish.seq, publish.duplicate = Outcome.ACKED, seq, duplicate
        self.acks += 1
        self.highest_acked = max(self.highest_acked, seq)

    def acked(self) -> list[Publish]:
        return [p for p in self.publishes if p.outcome is Outcome.ACKED]

    def longest_gap_ns(self) -> int:
        """The longest time between two acks, from the first to the last."""
        times = sorted(p.done_ns for p in self.acked())
        return max((b - a for a, b in pairwise(times)), default=0)

    def write(self, path: Path) -> None:
        with path.open("w") as file:
            for mark in self.marks:
                file.write(json.dumps({"mark": mark.text, "at_ns": mark.at_ns}) + "\n")
            for publish in self.publishes:
                record = asdict(publish) | {"outcome": publish.outcome.value}
                file.write(json.dumps(record) + "\n")
