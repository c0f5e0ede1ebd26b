"""The checker of chaos runs: a clean run passes, and every planted anomaly is reported."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.checker import EXAMPLES_MAX, Verdict, check
from chaos.history import History, Mark, Outcome, Publish

Stored = list[tuple[int, str]]
SECOND = 10**9


def clean_run(seed: int = 1, count: int = 60) -> tuple[History, Stored]:
    """Overlapping publishes; some failed, some without an answer, of which half are stored."""
    dice = random.Random(seed)
    history, stored = History(), list[tuple[int, str]]()
    for i in range(count):
        sent = i * SECOND
        publish = Publish(f"0-{i}", sent)
        kind = dice.random()
        if kind < 0.1:
            publish.outcome, publish.done_ns = Outcome.FAILED, sent + 1
        elif kind < 0.3:
            publish.done_ns = sent + 10 * SECOND
            if dice.random() < 0.5:
                stored.append((len(stored) + 1, publish.ident))
        else:
            stored.append((len(stored) + 1, publish.ident))
            publish.outcome, publish.seq = Outcome.ACKED, len(stored)
            publish.done_ns = sent + dice.randrange(3 * SECOND)
        history.publishes.append(publish)
    return history, stored


def verdict_of(history: History, stored: Stored, *others: Stored) -> Verdict:
    return check(history, {f"n{i}": reading for i, reading in enumerate((stored, *others), 1)})


@pytest.mark.parametrize("seed", range(5))
def test_a_clean_run_is_clean(seed: int) -> None:
    history, stored = clean_run(seed)
    verdict = verdict_of(history, stored, list(stored), list(stored))
    assert verdict.ok, f"{verdict.anomalies}, seed {seed}"
    assert verdict.acked + verdict.failed + verdict.unknown == 60
    assert verdict.stored == len(stored)
    assert verdict.lines()[-1] == "verdict: every promise kept"


def acked_in_the_middle(history: History) -> Publish:
    return history.acked()[len(history.acked()) // 2]


def lose(history: History, stored: Stored) -> str:
    victim = acked_in_the_middle(history)
    stored.remove((victim.seq, victim.ident))
    return victim.ident


def lose_the_last(history: History, stored: Stored) -> str:
    victim = history.acked()[-1]
    del stored[victim.seq - 1 :]
    return victim.ident


def store_twice(history: History, stored: Stored) -> str:
    victim = acked_in_the_middle(history)
    stored.append((len(stored) + 1, victim.ident))
    return f"{victim.ident}@{victim.seq},{len(stored)}"


def store_an_unanswered_one_twice(history: History, stored: Stored) -> str:
    victim = next(p for p in history.publishes if p.outcome is Outcome.UNKNOWN)
    stored[:] = [(seq, ident) for seq, ident in stored if ident != victim.ident]
    end = stored[-1][0]
    stored += [(end + 1, victim.ident), (end + 2, victim.ident)]
    return f"{victim.ident}@{end + 1},{end + 2}"


def move(history: History, stored: Stored) -> str:
    victim = acked_in_the_middle(history)
    stored.remove((victim.seq, victim.ident))
    stored.append((len(stored) + 2, victim.ident))
    return f"{victim.ident}@{victim.seq}"


def swap(history: History, stored: Stored) -> str:
    victim = acked_in_the_middle(history)
    other = history.acked()[0]
    stored[victim.seq - 1] = (victim.seq, other.ident)
    stored[other.seq - 1] = (other.seq, victim.ident)
    return f"{other.ident}@{other.seq}"


def invent(_: History, stored: Stored) -> str:
    stored.append((len(stored) + 1, "from nowhere"))
    return "from nowhere"


def store_a_failed_one(history: History, stored: Stored) -> str:
    victim = next(p for p in history.publishes if p.outcome is Outcome.FAILED)
    stored.append((len(stored) + 1, victim.ident))
    return victim.ident


def use_a_sequence_twice(history: History, stored: Stored) -> str:
    unanswered = next(p for p in history.publishes if p.outcome is Outcome.UNKNOWN)
    stored[:] = [(seq, ident) for seq, ident in stored if ident != unanswered.ident]
    end = stored[-1][0]
    stored.append((end, unanswered.ident))
    return f"{end},{end}"


def go_back(history: History, stored: Stored) -> str:
    """A later publish got a lower sequence: two leaders counted independently."""
    first, last = history.acked()[0], history.acked()[-1]
    first.ident, last.ident = last.ident, first.ident
    first.seq, last.seq = last.seq, first.seq
    return f"{last.ident}@{last.seq}"


PLANTED: list[tuple[Callable[[History, Stored], str], str]] = [
    (lose, "acked but lost"),
    (lose_the_last, "acked but lost"),
    (store_twice, "stored twice"),
    (store_an_unanswered_one_twice, "stored twice"),
    (move, "acked at another sequence"),
    (swap, "acked at another sequence"),
    (invent, "never sent"),
    (store_a_failed_one, "told failed but stored"),
    (use_a_sequence_twice, "stored out of order"),
    (go_back, "sequence went back"),
]


@pytest.mark.parametrize(
    ("plant", "name"), PLANTED, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_planted_anomaly_is_reported(plant: Callable[[History, Stored], str], name: str) -> None:
    history, stored = clean_run()
    example = plant(history, stored)
    verdict = verdict_of(history, stored)
    assert not verdict.ok
    assert example in verdict.anomalies[name]
    assert any(line.startswith(f"{name}: ") for line in verdict.lines())
    assert verdict.lines()[-1] == "verdict: PROMISES BROKEN"


def test_an_unanswered_publish_may_be_stored_or_not() -> None:
    unanswered = Publish("0-1", 0, done_ns=1)
    acked = Publish("0-0", 0, done_ns=1, outcome=Outcome.ACKED, seq=1)
    history = History([acked, unanswered])
    for stored in ([(1, "0-0")], [(1, "0-0"), (2, "0-1")]):
        assert verdict_of(history, stored).ok


def test_publishes_that_overlap_may_be_stored_in_any_order() -> None:
    early = Publish("a", 0, done_ns=10, outcome=Outcome.ACKED, seq=2)
    late = Publish("b", 5, done_ns=12, outcome=Outcome.ACKED, seq=1)
    assert verdict_of(History([early, late]), [(1, "b"), (2, "a")]).ok


def test_gaps_in_sequences_are_allowed() -> None:
    publish = Publish("a", 0, done_ns=10, outcome=Outcome.ACKED, seq=7)
    assert verdict_of(History([publish]), [(7, "a")]).ok


@pytest.mark.parametrize(
    "other",
    [
        lambda stored: stored[:-1],
        lambda stored: [*stored, (99, "0-0")],
        lambda stored: [stored[1], stored[0], *stored[2:]],
    ],
    ids=["behind", "ahead", "other order"],
)
def test_replicas_that_differ_are_reported(other: Callable[[Stored], Stored]) -> None:
    history, stored = clean_run()
    verdict = verdict_of(history, stored, list(stored), other(stored))
    assert verdict.anomalies == {"replicas differ": ["n1 and n3"]}


def test_a_run_without_an_ack_does_not_pass() -> None:
    history = History([Publish(f"0-{i}", i, done_ns=i + 1) for i in range(3)])
    verdict = verdict_of(history, [])
    assert verdict.anomalies == {"nothing acked": ["3 publishes"]}
    assert verdict_of(History(), []).ok


def test_a_report_shows_some_examples_and_the_count() -> None:
    history, stored = clean_run()
    stored += [(len(stored) + 1 + i, f"x-{i}") for i in range(EXAMPLES_MAX + 3)]
    [line] = [line for line in verdict_of(history, stored).lines() if line.startswith("never sent")]
    assert line == "never sent: 8 (x-0, x-1, x-2, x-3, x-4, ...)"


def test_the_report_counts() -> None:
    history = History(
        [
            Publish("a", 0, done_ns=SECOND, outcome=Outcome.ACKED, seq=1),
            Publish("b", 0, done_ns=5 * SECOND // 2, outcome=Outcome.ACKED, seq=2),
            Publish("c", 0, done_ns=9 * SECOND, outcome=Outcome.FAILED),
            Publish("d", 0),
        ]
    )
    lines = verdict_of(history, [(1, "a"), (2, "b")]).lines()
    assert lines == [
        "publishes: 2 acked, 1 failed, 1 unanswered; 2 stored",
        "longest time between two acks: 1.500 s",
        "verdict: every promise kept",
    ]


# -- the journal -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "expected"),
    [([], 0), ([5], 0), ([5, 5], 0), ([9, 1, 4], 5), ([0, 100, 101], 100)],
)
def test_the_longest_gap_between_acks(times: list[int], expected: int) -> None:
    history = History([Publish("x", 0, done_ns=t, outcome=Outcome.ACKED) for t in times])
    history.publishes.append(Publish("failed", 0, done_ns=10**6, outcome=Outcome.FAILED))
    history.publishes.append(Publish("unanswered", 0, done_ns=10**6))
    assert history.longest_gap_ns() == expected


def test_only_acked_publishes_are_promises() -> None:
    publishes = [Publish(outcome.value, 0, outcome=outcome) for outcome in Outcome]
    assert [p.ident for p in History(publishes).acked()] == ["acked"]
    assert Publish("new", 0).outcome is Outcome.UNKNOWN  # until an answer says otherwise


def test_the_journal_is_one_record_per_line(tmp_path: Path) -> None:
    history = History(
        [Publish("a", 1, 2, Outcome.ACKED, 3, duplicate=True, attempts=2), Publish("ü\n", 4)],
        [Mark(7, "kill n1")],
    )
    path = tmp_path / "journal.jsonl"
    history.write(path)
    mark, first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert mark == {"mark": "kill n1", "at_ns": 7}
    assert first == {
        "ident": "a",
        "sent_ns": 1,
        "done_ns": 2,
        "outcome": "acked",
        "seq": 3,
        "duplicate": True,
        "attempts": 2,
        "error": "",
    }
    assert (second["ident"], second["outcome"]) == ("ü\n", "unknown")
