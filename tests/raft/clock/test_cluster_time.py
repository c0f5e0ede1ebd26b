"""The time of the cluster: one wrong clock does not move it, and it never goes back."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from raft.clock.cluster_time import NS_PER_S, ClockSample, ClockVerdict, ClusterTime
from raft.types import NodeId

A, B, C, D, E = (NodeId(number) for number in range(1, 6))
EPOCH = 1_800_000_000 * NS_PER_S
HOUR = 3600 * NS_PER_S
HALF = NS_PER_S // 2
MS = 1_000_000


@dataclass(slots=True)
class Rig:
    """Node A. `wrong`: how far each clock is ahead of the right time, in nanoseconds."""

    members: tuple[NodeId, ...] = (A, B, C)
    wrong: dict[NodeId, int] = field(default_factory=dict)
    up: set[NodeId] = field(default_factory=lambda: {B, C, D, E})
    boot_ns: int = 50 * NS_PER_S
    held: dict[NodeId, int] = field(default_factory=dict)  # what peers tell as the time, likewise
    time: ClusterTime = field(init=False)

    def __post_init__(self) -> None:
        self.time = ClusterTime(A, boot_ns=self.boot_ns, wall_ns=self.wall(A))

    def wall(self, node: NodeId) -> int:
        return EPOCH + self.boot_ns + self.wrong.get(node, 0)

    def update(self, times: int = 1, *, error_ns: int = MS) -> ClusterTime:
        for _ in range(times):
            self.boot_ns += HALF
            for peer in sorted(self.up & set(self.members)):
                sample = ClockSample(self.wall(peer) - self.boot_ns, error_ns, self.boot_ns)
                told = EPOCH + self.held[peer] if peer in self.held else None
                self.time.sampled(peer, sample, told)
            self.time.update(boot_ns=self.boot_ns, wall_ns=self.wall(A), members=self.members)
        return self.time

    def error_ns(self) -> int:
        """How far the time is ahead of the right one."""
        return self.time.now_ns(self.boot_ns) - self.boot_ns - EPOCH


@pytest.mark.parametrize("away_ns", [HOUR, -HOUR])
def test_our_own_wrong_clock_does_not_move_the_time(away_ns: int) -> None:
    rig = Rig(wrong={A: away_ns})
    assert rig.update().verdict is ClockVerdict.DISAGREES
    assert rig.error_ns() == 0
    assert rig.time.own_error_ns == away_ns
    assert rig.time.is_wrong(A)


@pytest.mark.parametrize("away_ns", [HOUR, -HOUR])
def test_the_wrong_clock_of_a_peer_does_not_move_the_time(away_ns: int) -> None:
    rig = Rig(wrong={C: away_ns})
    assert rig.update().verdict is ClockVerdict.AGREES
    assert rig.error_ns() == 0
    assert rig.time.is_wrong(C)
    assert not rig.time.is_wrong(B)


def test_two_wrong_clocks_of_five_do_not_move_the_time() -> None:
    rig = Rig(members=(A, B, C, D, E), wrong={D: HOUR, E: HOUR})
    assert rig.update().verdict is ClockVerdict.AGREES
    assert rig.error_ns() == 0


def test_a_clock_that_jumps_while_we_run_changes_the_verdict_and_not_the_time() -> None:
    rig = Rig()
    rig.update()
    rig.wrong[A] = HOUR
    assert rig.update(2).verdict is ClockVerdict.AGREES  # it may be a mistake
    assert rig.update().verdict is ClockVerdict.DISAGREES
    assert rig.error_ns() == 0
    rig.wrong[A] = 0
    assert rig.update(3).verdict is ClockVerdict.AGREES


def test_the_clock_of_a_peer_that_is_gone_still_counts() -> None:
    rig = Rig(wrong={C: HOUR})
    rig.update()
    rig.up = {C}
    assert rig.update(20).verdict is ClockVerdict.AGREES
    assert rig.error_ns() == 0


def test_one_node_has_the_time_of_its_clock_and_follows_it() -> None:
    rig = Rig(members=(A,))
    assert rig.update().verdict is ClockVerdict.AGREES
    rig.wrong[A] = HOUR
    rig.update()
    assert rig.error_ns() == HOUR


def test_before_the_cluster_is_known_the_time_is_not() -> None:
    rig = Rig(members=(), wrong={A: HOUR})
    assert rig.update().verdict is ClockVerdict.UNKNOWN
    assert not rig.time.is_held
    rig.members = (A, B, C)
    rig.update()
    assert rig.error_ns() == 0


def test_a_node_without_a_majority_adopts_the_time_that_a_peer_holds() -> None:
    rig = Rig(wrong={B: -HOUR}, up={B}, held={B: 0})  # its own clock is wrong, its time is not
    assert rig.update().verdict is ClockVerdict.AGREES
    assert rig.error_ns() == 0


def test_a_node_whose_clock_differs_from_the_time_it_adopted_is_wrong() -> None:
    rig = Rig(wrong={A: HOUR}, up={B}, held={B: 0})
    assert rig.update().verdict is ClockVerdict.DISAGREES


def test_the_own_clock_alone_is_a_guess_while_there_are_other_members() -> None:
    rig = Rig(up=set())
    assert rig.update().is_guess
    rig.up = {B}
    assert not rig.update().is_guess
    assert not Rig(members=(A,)).update().is_guess
    assert not Rig(members=()).update().is_guess


@pytest.mark.parametrize("wrong", [{A: HOUR}, {B: HOUR}])
def test_in_doubt_the_earliest_clock_is_used(wrong: dict[NodeId, int]) -> None:
    rig = Rig(wrong=wrong, up={B})
    assert rig.update().verdict is ClockVerdict.UNKNOWN
    assert rig.error_ns() == 0
    assert not rig.time.in_doubt(rig.boot_ns)
    rig.update(5)
    assert rig.time.in_doubt(rig.boot_ns)
    assert not rig.update(1).is_held


def test_without_a_majority_the_time_goes_on_as_it_was() -> None:
    rig = Rig()
    rig.update()
    rig.wrong, rig.up = {A: HOUR, B: 2 * HOUR, C: 3 * HOUR}, {B, C}
    assert rig.update(3).verdict is ClockVerdict.DISAGREES
    assert rig.error_ns() == 0


def test_the_time_never_goes_back_and_runs_slower_instead() -> None:
    rig = Rig()
    rig.update()
    rig.wrong = dict.fromkeys((A, B, C), -HOUR)  # all clocks are set back
    last = rig.time.now_ns(rig.boot_ns)
    for _ in range(20):
        rig.update()
        now = rig.time.now_ns(rig.boot_ns)
        assert now - last >= HALF * 9 // 10
        last = now
    assert rig.error_ns() < 0


def test_a_small_correction_is_made_in_small_steps_a_large_one_forward_at_once() -> None:
    rig = Rig()
    rig.update()
    rig.wrong = dict.fromkeys((A, B, C), 100 * MS)
    rig.update()
    assert rig.error_ns() == HALF // 20
    rig.update(3)
    assert rig.error_ns() == 100 * MS
    rig.wrong = dict.fromkeys((A, B, C), HOUR)
    rig.update(2)
    assert rig.error_ns() == HOUR


def test_leaders_that_measure_the_same_clocks_have_the_same_time() -> None:
    """A change of leader does not show, although the clocks differ by half a second."""
    clocks = {A: 0, B: 200 * MS, C: 500 * MS}
    seen = []
    for order in ((A, B, C), (B, C, A), (C, A, B)):
        rig = Rig(wrong=dict(zip((A, B, C), (clocks[node] for node in order), strict=True)))
        rig.update(5)
        seen.append(rig.error_ns())
    assert max(seen) - min(seen) <= 2 * MS


def test_a_slow_answer_is_no_evidence_against_a_clock() -> None:
    rig = Rig(wrong={B: 2 * NS_PER_S, C: -2 * NS_PER_S})
    assert rig.update(error_ns=3 * NS_PER_S).verdict is ClockVerdict.AGREES
