"""The time of the cluster, as one node knows it: what a majority of its members' clocks says.

Owns: the samples of all clocks, the time that is held, the verdict about our own clock.
May not touch: clocks and links (raft/clock/cluster_clock.py has them); all times are arguments.
Spec: docs/decisions/0020-cluster-time.md. An offset is a wall clock minus our boot-time clock. So
a jump of our own wall clock changes one source, and nothing else."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from raft.clock.agreement import Interval, agreement
from raft.types import NodeId

NS_PER_S: Final = 1_000_000_000
MARGIN_NS: Final = NS_PER_S // 2  # clocks that differ by twice as much still agree
STEP_NS: Final = 60 * NS_PER_S  # corrections that are larger are made at once, but never back
DRIFT_PPM: Final = 200  # of a clock that nobody corrects; a sample is less certain with age
SLEW_PERCENT: Final = 5  # of the time that passes; timers, such as an ack wait, hardly notice it
SAMPLES: Final = 8  # of one peer; the best of them counts
KNOWN_WITHIN_NS: Final = 2 * NS_PER_S  # after this node has become one of several members
VERDICTS: Final = 3  # in a row, before our own clock is said to be wrong, or right again
_MILLION: Final = 1_000_000


class ClockVerdict(Enum):
    UNKNOWN = "unknown"  # the time of the cluster is not known yet
    AGREES = "agrees"
    DISAGREES = "disagrees"


@dataclass(frozen=True, slots=True)
class ClockSample:
    """A wall clock, measured at `at_ns` of our boot-time clock."""

    offset_ns: int
    error_ns: int
    at_ns: int

    def uncertainty(self, now_ns: int) -> int:
        return self.error_ns + max(0, now_ns - self.at_ns) * DRIFT_PPM // _MILLION

    def interval(self, now_ns: int) -> Interval:
        margin = self.uncertainty(now_ns) + MARGIN_NS
        return Interval(self.offset_ns - margin, self.offset_ns + margin)


class PeerClock:
    """The last samples of one peer. They stay when the peer is gone: its clock goes on."""

    __slots__ = ("_samples", "held_offset_ns")

    def __init__(self) -> None:
        self._samples: deque[ClockSample] = deque(maxlen=SAMPLES)
        self.held_offset_ns: int | None = None  # the time of the cluster, as the peer holds it

    def add(self, sample: ClockSample, held_offset_ns: int | None) -> bool:
        """Whether it is the first one, or the clock was set since the last one."""
        self.held_offset_ns = held_offset_ns
        if self._samples and not self._contradicts(sample):
            self._samples.append(sample)
            return False
        self._samples = deque([sample], SAMPLES)
        return True

    def _contradicts(self, sample: ClockSample) -> bool:
        best = self.best(sample.at_ns)
        apart_ns = abs(sample.offset_ns - best.offset_ns)
        return apart_ns > sample.error_ns + best.uncertainty(sample.at_ns) + MARGIN_NS // 5

    def best(self, now_ns: int) -> ClockSample:
        return min(self._samples, key=lambda sample: sample.uncertainty(now_ns))


class ClusterTime:
    def __init__(self, node: NodeId, *, boot_ns: int, wall_ns: int) -> None:
        self.verdict = ClockVerdict.UNKNOWN
        self.is_held = False  # a majority has agreed, here or on the peer we have it from
        self._node = node
        self._offset_ns = wall_ns - boot_ns  # of the time that we hold
        self._own = ClockSample(self._offset_ns, 0, boot_ns)
        self._peers: dict[NodeId, PeerClock] = {}
        self._members: frozenset[NodeId] = frozenset()
        self._updated_ns = boot_ns
        self._clustered_ns = boot_ns  # since then there are other members
        self._last_ns = 0
        self._wrong_peers: frozenset[NodeId] = frozenset()
        self._changing = 0  # updates in a row whose verdict differs from ours

    # -- what is known

    def now_ns(self, boot_ns: int) -> int:
        """The time. It never goes back, except when it becomes known for the first time."""
        self._last_ns = max(self._last_ns, boot_ns + self._offset_ns)
        return self._last_ns

    def in_doubt(self, boot_ns: int) -> bool:
        """Whether the time should be known by now, and is not."""
        return not self.is_held and boot_ns - self._clustered_ns > KNOWN_WITHIN_NS

    @property
    def is_guess(self) -> bool:
        """Whether there are other members, and no clock but our own is known."""
        if self.is_held:
            return False
        others = self._members - {self._node}
        return bool(others) and others.isdisjoint(self._peers)

    @property
    def own_error_ns(self) -> int:
        """How far our own wall clock is ahead of the time."""
        return self._own.offset_ns - self._offset_ns

    def held_offset_ns(self) -> int | None:
        return self._offset_ns if self.is_held else None

    def is_wrong(self, node: NodeId) -> bool:
        """Whether the clock of a node is known to disagree with the majority."""
        if node == self._node:
            return self.verdict is ClockVerdict.DISAGREES
        return node in self._wrong_peers

    # -- inputs

    def sampled(self, peer: NodeId, sample: ClockSample, held_offset_ns: int | None) -> bool:
        """`held_offset_ns`: of the time that the peer holds, if it does. Returns whether this is
        news, so that an update should not wait."""
        clock = self._peers.get(peer)
        if clock is None:
            clock = self._peers[peer] = PeerClock()
        return clock.add(sample, held_offset_ns) or not self.is_held

    def forget(self, keep: Collection[NodeId]) -> None:
        """Only these peers can still be of interest."""
        for peer in self._peers.keys() - set(keep) - self._members:
            del self._peers[peer]

    def update(self, *, boot_ns: int, wall_ns: int, members: Collection[NodeId]) -> None:
        """`members` of the cluster, empty before it is known."""
        elapsed_ns = max(0, boot_ns - self._updated_ns)
        self._updated_ns = boot_ns
        self._own = ClockSample(wall_ns - boot_ns, 0, boot_ns)
        self._members = frozenset(members)
        if len(self._members) <= 1:
            self._clustered_ns = boot_ns
        agreed = self._majority(boot_ns)
        if agreed is not None:
            known = self._known()
            right = [node for node, one in known.items() if one.interval(boot_ns).meets(agreed)]
            self._wrong_peers = frozenset(known.keys() - {*right, self._node})
            self._approach(_lower_median(known[node].offset_ns for node in right), elapsed_ns)
            self.is_held = True
            self._judge(self._node in right or self._node not in members)
            return
        self._wrong_peers = frozenset()
        if not self.is_held:
            self._adopt()
        if self.is_held:
            self._judge(abs(self.own_error_ns) <= 2 * MARGIN_NS)

    # -- decisions

    def _known(self) -> dict[NodeId, ClockSample]:
        """The clocks of members, and our own, which is not a member before it has joined."""
        known = {
            node: clock.best(self._updated_ns)
            for node, clock in self._peers.items()
            if node in self._members and node != self._node
        }
        if self._node in self._members or not known:
            known[self._node] = self._own
        return known

    def _majority(self, boot_ns: int) -> Interval | None:
        if not self._members:
            return None
        best = agreement(one.interval(boot_ns) for one in self._known().values())
        if best is None or 2 * best.sources <= len(self._members):
            return None
        return best.interval

    def _approach(self, target_ns: int, elapsed_ns: int) -> None:
        """Correct the time that we hold; the first time, and if it is far behind, at once."""
        ahead_ns = target_ns - self._offset_ns
        if not self.is_held:
            self._last_ns = 0
        elif ahead_ns <= STEP_NS:
            most_ns = elapsed_ns * SLEW_PERCENT // 100
            ahead_ns = max(-most_ns, min(most_ns, ahead_ns))
        self._offset_ns += ahead_ns

    def _adopt(self) -> None:
        """No majority, and no time of our own: take it from a peer that holds it; otherwise use
        the earliest clock, because a time that is ahead deletes messages."""
        held = [
            clock.held_offset_ns
            for node, clock in self._peers.items()
            if node in self._members and clock.held_offset_ns is not None
        ]
        self._last_ns = 0
        if held:
            self._offset_ns = _lower_median(held)
            self.is_held = True
        else:
            self._offset_ns = min(one.offset_ns for one in self._known().values())

    def _judge(self, right: bool) -> None:  # noqa: FBT001
        verdict = ClockVerdict.AGREES if right else ClockVerdict.DISAGREES
        if verdict is self.verdict:
            self._changing = 0
            return
        self._changing += 1
        if self.verdict is ClockVerdict.UNKNOWN or self._changing >= VERDICTS:
            self.verdict = verdict
            self._changing = 0


def _lower_median(values: Iterable[int]) -> int:
    found = sorted(values)
    return found[(len(found) - 1) // 2]
