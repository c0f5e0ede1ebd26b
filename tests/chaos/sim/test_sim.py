"""The simulator: seeds are clean, planted bugs are found, and every run can be replayed."""

from __future__ import annotations

from collections import Counter

import pytest

from chaos.sim.consensus.checks import SafetyChecks, Violation
from chaos.sim.consensus.planted_bugs import NO_BUG, PLANTED_BUGS
from chaos.sim.consensus.run import find_bug, run_seed, run_seeds, survey
from raft.core.messages import EntryKind
from raft.types import Index, Members, NodeId, Term
from tests.support.fresh_seeds import fresh_seeds

FIXED_SEEDS = 20
FRESH_SEEDS = 100  # new ones for every change of the code; a failure names its seed
PORTIONS = 10

# Each seed failed once, for the given reason. They run first. A seed is dropped when a change of
# the simulator gives it another schedule; what it found in the core is a script or a test there.
REGRESSIONS: dict[int, str] = {
    281: "the checks took the members of a log that a snapshot was about to replace",
    499348403955: "the only member led a term again that it had forgotten with a failed flush",
}

# Where the search for a planted bug begins, to keep the suite short: a little before the first seed
# from 0 on that finds it. After a change of schedules the search goes on from there.
FIRST_SEED = {
    "commit_earlier_term": 1245,
    "count_failed_flush": 10,
    "forget_promise": 190,
    "forget_vote": 50,
    "joint_new_only": 30,
    "keep_damaged": 28,
    "late_members": 9,
    "read_after_lease": 8,
    "read_asleep": 405,
    "removed_votes": 30,
    "write_after_snapshot": 240,
}

SEEN: Counter[str] = Counter()  # events in the portions below


@pytest.mark.parametrize("portion", range(PORTIONS))
def test_no_rule_is_broken_under_faults_and_progress_resumes_after_them(portion: int) -> None:
    fresh = fresh_seeds(f"raft {portion}", FRESH_SEEDS // PORTIONS)
    fixed = range(portion, FIXED_SEEDS, PORTIONS)
    for seed in (*(REGRESSIONS if portion == 0 else ()), *fixed, *fresh):
        outcome = run_seed(seed)
        assert outcome.ok, outcome.report()
        SEEN.update(outcome.counters)


def test_the_faults_really_happened() -> None:
    """A simulator that injects no faults proves nothing: every kind of event occurs."""
    if SEEN["leaders"] < PORTIONS:
        SEEN.update(survey(0, FIXED_SEEDS).counters)  # this test runs alone
    for event in (
        "acknowledged",
        "bit flips",
        "broken links",
        "committed",
        "compactions",
        "crashes",
        "cuts",
        "failed disks",
        "full disks",
        "leaders",
        "logs given up",
        "member changes",
        "one-way cuts",
        "pauses",
        "reads",
        "reads by lease",
        "recovered disks",
        "refused writes",
        "shared batches",
        "shared flushes",
        "sleeps",
        "snapshots installed",
        "snapshots sent",
        "stalled disks",
        "superseded batches",
        "transfers",
        "writes lost",
    ):
        assert SEEN[event] > 0, f"{event} never happened: {SEEN}"


@pytest.mark.parametrize("bug", PLANTED_BUGS)
def test_planted_bug_is_found_within_2000_seeds(bug: str) -> None:
    found = find_bug(bug, first=FIRST_SEED.get(bug, 0), count=2000)
    assert found is not None, f"{bug} is not found"
    again = run_seed(found.seed, bug=bug, trace=True)
    assert again.violation == found.violation
    text = again.report()
    assert f"seed {found.seed}" in text
    assert again.trace[-1] in text
    assert f"replay: jetraft chaos sim --raft --seed {found.seed}" in text
    assert run_seed(found.seed).ok, "without the bug the same seed is clean"


@pytest.mark.parametrize("seed", [3, 11])
def test_same_seed_same_run(seed: int) -> None:
    first, second = run_seed(seed, trace=True), run_seed(seed, trace=True)
    assert first.trace == second.trace
    assert (first.steps, first.counters) == (second.steps, second.counters)
    assert run_seed(seed).steps == first.steps, "tracing changes nothing"


def test_many_seeds_report_progress() -> None:
    reported: list[int] = []
    assert run_seeds(0, 3, 1, reported.append) == []
    assert reported == [1, 2, 3]


def test_several_processes_give_the_same_verdicts() -> None:
    alone, shared = survey(20, 4, 1), survey(20, 4, 2)
    assert alone.ok
    assert shared.ok
    assert alone.counters == shared.counters


def test_every_planted_bug_replaces_something() -> None:
    assert len(PLANTED_BUGS) == 19
    assert NO_BUG not in PLANTED_BUGS.values()
    assert len(set(PLANTED_BUGS.values())) == len(PLANTED_BUGS)


def test_a_leader_does_not_forget_a_term_that_others_have_heard_of() -> None:
    """The only member of a group may forget one, with its entries (raft/DIVERGENCE.md)."""
    checks = SafetyChecks(Members((NodeId(1),)), {})
    checks._leaders[Term(2)] = NodeId(1)
    checks._entries[Index(5), Term(2)] = (b"x", EntryKind.NORMAL, Term(1))
    checks._forget_terms(NodeId(1), Term(1))
    assert not checks._entries
    checks._heard_of.add(Term(2))
    with pytest.raises(Violation, match="has forgotten term 2"):
        checks._forget_terms(NodeId(1), Term(1))
