"""Failures for people: shrunk to the faults they need, told with the command that repeats them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

from chaos.sim.broker.marks import known_marks
from chaos.sim.broker.plan import Plan
from chaos.sim.broker.planted_bugs import BROKER_BUGS, find_bug
from chaos.sim.broker.report import Replay, replay_report
from chaos.sim.broker.run import OPERATIONS_SHOWN, leading_to, run_broker_seed, survey_brokers
from chaos.sim.broker.shrink import shrink
from chaos.sim.promises.journal import Journal
from chaos.sim.world.virtual_time import WorldTime

STORY = """
from chaos.sim.broker.run import run_broker_seed
print("\\n".join(run_broker_seed(60, tell=True).story))
"""


def long_plan() -> Plan:
    return next(plan for plan in map(Plan.drawn_from, range(100)) if len(plan.script) > 12)


def test_only_the_faults_that_the_failure_needs_are_left() -> None:
    plan = long_plan()
    needed = {plan.script[3], plan.script[10]}
    found = shrink(plan, lambda candidate: needed <= set(candidate.script))
    assert found.faults == (3, 10)
    assert set(found.plan.script) == needed


def test_work_that_the_failure_does_not_need_is_left_out() -> None:
    plan = replace(long_plan(), workloads=("one", "two", "three"))
    found = shrink(plan, lambda candidate: "two" in candidate.workloads)
    assert found.plan.workloads == ("two",)
    assert found.plan.script == ()


def test_shrinking_ends_after_so_many_attempts() -> None:
    found = shrink(long_plan(), lambda _: False, attempts_max=5)
    assert found.attempts == 5


def test_the_story_of_a_failure_names_the_command_that_repeats_it() -> None:
    bug = "ack before flush"
    found = find_bug(bug, BROKER_BUGS[bug].found_by, 60)
    assert found is not None
    ok, text = replay_report(Replay(found.seed, workloads=found.plan.workloads, bug=bug))
    assert not ok
    assert f"verdict: {found.violation}" in text
    command = f"jetraft chaos sim --seed {found.seed} --workload 'acked publishers'"
    assert f"repeat: {command} --bug '{bug}'" in text


def test_a_failure_shows_the_operations_that_its_verdict_names() -> None:
    journal = Journal(WorldTime())
    for number in range(OPERATIONS_SHOWN * 2):
        journal.invoke("c", "repeated message", id=f"c-{number}", payload=b"%d" % number)
    shown = leading_to("BATCHED: message id c-1 is stored 2 times: [1, 7]", journal)
    assert shown == [str(journal.operations[1])]
    assert len(leading_to("streams without a leader", journal)) == OPERATIONS_SHOWN


def test_the_same_seed_gives_the_same_story_in_other_processes() -> None:
    here = "\n".join(run_broker_seed(60, tell=True).story)
    for hashes in ("1", "2"):
        told = subprocess.run(
            [sys.executable, "-c", STORY],
            env=os.environ | {"PYTHONHASHSEED": hashes},
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stdout.strip() == here.strip()


def test_marks_that_no_seed_reached_are_listed() -> None:
    survey = survey_brokers([60])
    assert "logged: cluster founded by %s" in known_marks()
    assert "logged: cluster founded by %s" not in survey.unreached()
    assert set(survey.unreached()) < known_marks()
