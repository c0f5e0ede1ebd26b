"""The record of a run: the facts that the report shows.

Owns: the structure of the record, and the figures derived from it.
May not touch: how it is shown."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from chaos.campaign.work.campaign_work import CampaignWork
from chaos.checker import Verdict
from chaos.history import History, Outcome, Publish
from chaos.sim.promises.journal import Result

AFTER_S = 5.0  # an effect may show this long after a fault has ended


@dataclass(slots=True)
class Injected:
    """An injected fault. Times are in nanoseconds, like those of the history."""

    kind: str
    text: str
    nodes: list[str]
    begin_ns: int
    end_ns: int = 0  # all nodes were healthy again
    failed: str = ""  # why the cluster did not recover


@dataclass(slots=True)
class Seen:
    """The state of one node at one time: leader, follower, unhealthy, no answer or down."""

    at_ns: int
    node: str
    state: str


@dataclass(slots=True)
class CampaignRecord:
    """Everything about one run."""

    title: str
    command: str  # that repeats it
    seed: int
    nodes: list[str]
    history: History
    verdict: Verdict
    faults: list[Injected] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    not_tried: list[str] = field(default_factory=list)  # kinds of faults, each with its reason
    story: list[str] = field(default_factory=list)  # around a violation
    facts: list[tuple[str, str]] = field(default_factory=list)  # further figures
    works: Sequence[CampaignWork] = ()  # with their journals
    # Computed once: an hour has half a million publishes.
    begin_ns: int = field(init=False)
    end_ns: int = field(init=False)
    # Times of acks, and publishes; sorted once, because they are searched for every fault.
    _acked_ns: list[int] = field(init=False)
    _by_sending: list[Publish] = field(init=False)

    def __post_init__(self) -> None:
        """The history is complete."""
        self._acked_ns = sorted(one.done_ns for one in self.history.acked())
        self._by_sending = sorted(self.history.publishes, key=_sent_ns)
        self.begin_ns = self._by_sending[0].sent_ns if self._by_sending else 0
        self.end_ns = max((one.done_ns for one in self.history.publishes), default=0)

    def counts(self) -> list[tuple[str, int, int, int]]:
        """Of every workload: its name, and operations that were ok, failed, and unknown."""
        found = []
        for work in self.works:
            of = Counter(one.result for one in work.journal.operations)
            found.append((work.name, of[Result.OK], of[Result.FAILED], of[Result.UNKNOWN]))
        return found

    @property
    def ok(self) -> bool:
        return self.verdict.ok

    def gap_s(self, fault: Injected) -> float:
        """The longest time without an ack that the fault may have caused."""
        times = self._acked_ns
        begin, end = fault.begin_ns, (fault.end_ns or fault.begin_ns) + int(AFTER_S * 1e9)
        later = [one.begin_ns for one in self.faults if one.begin_ns > begin]
        end = min(end, *later) if later else end
        first = max(bisect_left(times, begin) - 1, 0)
        last = min(bisect_right(times, end) + 1, len(times))
        gaps = (min(b, end) - a for a, b in pairwise(times[first:last]))
        return max(gaps, default=0) / 1e9

    def unanswered(self, fault: Injected) -> tuple[int, int]:
        """Publishes sent during the fault that failed, and that got no answer."""
        first = bisect_left(self._by_sending, fault.begin_ns, key=_sent_ns)
        last = bisect_right(self._by_sending, fault.end_ns or fault.begin_ns, key=_sent_ns)
        during = self._by_sending[first:last]
        failed = sum(one.outcome is Outcome.FAILED for one in during)
        return failed, sum(one.outcome is Outcome.UNKNOWN for one in during)


def _sent_ns(one: Publish) -> int:
    return one.sent_ns
